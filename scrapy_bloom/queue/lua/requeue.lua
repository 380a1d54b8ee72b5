-- Requeues what worker ARGV[2] has leased in KEYS[5], for worker ARGV[1], unless its registration is no longer ARGV[3].
-- Of one that died while it closed the queue, a worker that is not registered takes over the closing, with the lease
-- ARGV[4] and the number ARGV[5].
if redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[3] then return {'alive'} end
local my = find(ARGV[1])
if string.find(ARGV[3], 'closing', 1, true) then
  if my then return {'alive'} end
  redis.call('HDEL', KEYS[2], ARGV[2])
  local beats = next_beat(0)
  record(ARGV[1], {lease = ARGV[4], number = tonumber(ARGV[5]), void = '', beats = beats, closing = ' closing'})
  return {'yours'}
end
if not my or my.closing ~= '' then return {'expired'} end
local number = requeue(KEYS[5])
redis.call('HDEL', KEYS[2], ARGV[2])
return {'requeued', {}, {}, number}
