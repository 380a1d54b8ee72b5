-- Remove the reference ARGV[1]; delete the hash KEYS[1] when none is left. Returns whether it was
-- deleted, and its fields.
redis.call('HDEL', KEYS[1], ARGV[1])
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 5) == 'user:' then return {0, {}} end
end
redis.call('UNLINK', KEYS[1])
return {1, fields}
