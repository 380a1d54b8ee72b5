-- KEYS: queue, crawl, workers, dead letters, failed. Returns the queue's type, the number of waiting requests, of dead letters and of
-- failed requests, the fields of the crawl, the registrations, and the time in milliseconds. Nothing is changed.
local call = redis.call
local kind, time = call('TYPE', KEYS[1]).ok, call('TIME')
local count = ({zset = 'ZCARD', list = 'LLEN'})[kind]
return {kind, count and call(count, KEYS[1]) or 0, call('ZCARD', KEYS[4]), call('HLEN', KEYS[5]), call('HGETALL', KEYS[2]),
  call('HGETALL', KEYS[3]), time[1] * 1000 + math.floor(time[2] / 1000)}
