-- Ends the closing of the queue by worker ARGV[1]. If ARGV[2] is 1, the waiting requests are
-- deleted. An empty queue loses its audit, too, and its deliveries except for those of dead letters.
-- If ARGV[3] is 1, the worker stays registered, with the spider mark ARGV[4].
local my = find(ARGV[1])
if not my or my.closing == '' then return {'expired'} end
if ARGV[2] == '1' then redis.call('DEL', KEYS[1]) end
if redis.call('ZCARD', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[5])
  for _, member in ipairs(redis.call('HKEYS', KEYS[6])) do
    if not redis.call('ZSCORE', KEYS[3], member) then redis.call('HDEL', KEYS[6], member) end
  end
end
if ARGV[3] == '1' then
  my.closing, my.spider, my.beats = '', ARGV[4], next_beat(my.beats)
  record(ARGV[1], my)
else
  redis.call('HDEL', KEYS[2], ARGV[1])
end
return {'ok'}
