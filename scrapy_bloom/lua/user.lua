-- KEYS: the filter. ARGV: its id, a user, whether it is removed. Deletes a filter without users. Returns 1 if there is
-- no filter any more.
if not filter.open(KEYS[1], ARGV[1]) then return 1 end
if ARGV[3] == '0' then filter.add_user(KEYS[1], ARGV[2])
elseif filter.remove_user(KEYS[1], ARGV[2]) then
  filter.delete(KEYS[1])
  return 1
end
return 0
