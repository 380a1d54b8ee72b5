-- Has KEYS[1] expire at this Unix time in milliseconds, unless it does so later. The scripts that make a filter's hash,
-- or a layer in it, begin with it. A user who may not do that goes on without.
-- The options GT and NX of PEXPIREAT would say the same from Redis 7.0 on.
local function keep_until(time)
  local left = time and redis.pcall('PTTL', KEYS[1])
  if type(left) ~= 'number' then return end
  local now = redis.call('TIME')
  if left < 0 or time - now[1] * 1000 - now[2] / 1000 > left then redis.pcall('PEXPIREAT', KEYS[1], time) end
end
