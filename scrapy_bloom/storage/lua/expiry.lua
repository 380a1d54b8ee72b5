-- Extend the expiry of KEYS[1] to this Unix time in milliseconds. Scripts that create a filter's hash
-- or a layer in it begin with this one. A user without PEXPIREAT permission continues without.
-- PEXPIREAT has the options GT and NX for it from Redis 7.0 on.
local function keep_until(time)
  local left = time and redis.pcall('PTTL', KEYS[1])
  if type(left) ~= 'number' then return end
  local now = redis.call('TIME')
  if left < 0 or time - now[1] * 1000 - now[2] / 1000 > left then redis.pcall('PEXPIREAT', KEYS[1], time) end
end
