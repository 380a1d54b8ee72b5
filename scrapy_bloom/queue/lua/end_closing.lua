-- Removes the registration of worker ARGV[1], which has closed the queue. If ARGV[2] is 1, the
-- waiting requests are deleted. An empty queue loses its audit, too, and its deliveries except for
-- those of dead letters.
local my = find(ARGV[1])
if not my or my.closing == '' then return {'expired'} end
if ARGV[2] == '1' then redis.call('DEL', KEYS[1]) end
if redis.call('ZCARD', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[5])
  for _, member in ipairs(redis.call('HKEYS', KEYS[6])) do
    if not redis.call('ZSCORE', KEYS[3], member) then redis.call('HDEL', KEYS[6], member) end
  end
end
redis.call('HDEL', KEYS[2], ARGV[1])
return {'ok'}
