-- Delete a shard, of any epoch if ARGV[1] is empty. If ARGV[2] is 1, only if items were forgotten, and only if its
-- version is far from ARGV[3], unless that is empty.
if kind() ~= 'shard' then return 0 end
if ARGV[1] ~= '' and number(1, 5) ~= tonumber(ARGV[1]) then return 0 end
if ARGV[2] == '1' then
  local mark = number(6, 7)
  if mark == 0 then return 0 end
  if ARGV[3] ~= '' and math.abs((mark - ARGV[3] + 16384) % 32768 - 16384) <= 1024 then return 0 end
end
return redis.call('UNLINK', KEYS[1])
