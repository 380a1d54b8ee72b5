-- KEYS: slots of the downloader. ARGV: for each the gap behind its moment. Reserves a moment of each slot, and returns how long to
-- wait for it, all in microseconds. The hash of a slot has the next free moment, and the time of the last call, by which a clock
-- that went back is noticed.
local time = redis.call('TIME')
local now, waits = time[1] * 1000000 + time[2], {}
for i, slot in ipairs(KEYS) do
  local kept = redis.call('HMGET', slot, 'free', 'now')
  local back = math.max((kept[2] or 0) - now, 0)
  local moment = math.max((kept[1] or 0) - back, now)
  local free = moment + ARGV[i]
  redis.call('HSET', slot, 'free', free, 'now', now)
  redis.call('PEXPIREAT', slot, math.ceil(free / 1000) + 1000)
  waits[i] = moment - now
end
return waits
