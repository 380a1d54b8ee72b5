-- Takes worker ARGV[1] out, which has closed the queue. If ARGV[2] is 1, what waits is deleted. With the last request go
-- the audit, and the deliveries of what is no dead letter.
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
