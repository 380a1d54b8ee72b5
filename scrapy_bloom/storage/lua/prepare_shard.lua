-- Allocate a string of ARGV[1] bytes, with the flags ARGV[2] and epoch 0, unless the key is in use.
-- It expires after ARGV[3] milliseconds, in case the layer never comes. There must be room for ARGV[4]
-- bytes, the rest of the layer: a part of it would only take the memory that a queue needs.
local contents = kind()
if contents ~= 'absent' then return {contents == 'shard' and 'present' or contents, 0, 0} end
local done = allocate(tonumber(ARGV[1]), ARGV[2], 0, tonumber(ARGV[4]))
if done[1] == 'made' then
  local now = redis.call('TIME')
  redis.pcall('PEXPIREAT', KEYS[1], string.format('%.0f', now[1] * 1000 + ARGV[3]))
end
return done
