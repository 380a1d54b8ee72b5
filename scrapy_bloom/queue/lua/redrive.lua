-- Requeues the dead letters ARGV[2] and following that are still there, for worker ARGV[1], and
-- forgets their deaths.
local my = find(ARGV[1])
if not my or my.closing ~= '' then return {'expired'} end
for i = 2, #ARGV do
  local score = redis.call('ZSCORE', KEYS[3], ARGV[i])
  if score then
    redis.call('ZREM', KEYS[3], ARGV[i])
    redis.call('HDEL', KEYS[6], ARGV[i])
    redis.call('ZADD', KEYS[1], score, ARGV[i])
  end
end
note_waiting()
return {'ok'}
