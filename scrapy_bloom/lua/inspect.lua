-- KEYS: queue, crawl, dead letters, failed. Returns the queue's type, the number of waiting requests, of dead letters and of
-- failed requests, the fields of the crawl, and the time in microseconds. Nothing is changed.
local call = redis.call
local kind, time = call('TYPE', KEYS[1]).ok, call('TIME')
local count = ({zset = 'ZCARD', list = 'LLEN'})[kind]
return {kind, count and call(count, KEYS[1]) or 0, call('ZCARD', KEYS[3]), call('HLEN', KEYS[4]), call('HGETALL', KEYS[2]),
  time[1] * 1000000 + time[2]}
