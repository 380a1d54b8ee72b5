-- Deletes the field ARGV[1] of a user, and with the last user's the whole hash KEYS[1]. Returns whether that was so, and
-- the fields that there were.
redis.call('HDEL', KEYS[1], ARGV[1])
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 5) == 'user:' then return {0, {}} end
end
redis.call('UNLINK', KEYS[1])
return {1, fields}
