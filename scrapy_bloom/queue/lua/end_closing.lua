-- Takes worker ARGV[1] out, which has closed the queue. If ARGV[2] is 1, what waits is deleted.
local my = find(ARGV[1])
if not my or my.closing == '' then return {'expired'} end
if ARGV[2] == '1' then redis.call('DEL', KEYS[1]) end
redis.call('HDEL', KEYS[2], ARGV[1])
return {'ok'}
