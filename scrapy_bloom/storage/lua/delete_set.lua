-- Delete the SET KEYS[1] if it still has all members ARGV[2..]. Returns whether the key is absent now. If ARGV[1] is 0,
-- delete nothing, and return whether it would be.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'none' then return 1 end
if kind ~= 'set' then return 0 end
for i = 2, #ARGV do
  if redis.call('SISMEMBER', KEYS[1], ARGV[i]) == 0 then return 0 end
end
if ARGV[1] == '1' then redis.call('UNLINK', KEYS[1]) end
return 1
