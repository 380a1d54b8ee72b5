-- Has KEYS[1] expire at this Unix time in milliseconds, unless it does so later. The scripts that make a filter's hash,
-- or a layer in it, begin with it. A user who may not do that goes on without.
local function keep_until(time)
  if time and redis.pcall('PEXPIREAT', KEYS[1], time, 'GT') == 0 then
    redis.pcall('PEXPIREAT', KEYS[1], time, 'NX')
  end
end
