-- Delete the SET KEYS[1] if it still has all members ARGV. Returns whether the key is absent now.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'none' then return 1 end
if kind ~= 'set' then return 0 end
for i = 1, #ARGV do
  if redis.call('SISMEMBER', KEYS[1], ARGV[i]) == 0 then return 0 end
end
redis.call('UNLINK', KEYS[1])
return 1
