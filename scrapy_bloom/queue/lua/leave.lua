-- Removes the registration of worker ARGV[1], whose last sync has the number ARGV[2], and requeues
-- its leases. The last worker closes the queue instead, unless ARGV[3] is `keep`, or is `finished`
-- and requests wait.
local my = find(ARGV[1])
local function reply_with(status)
  return reply(status, {}, false, redis.call('ZCARD', KEYS[1]), 0, redis.call('ZCARD', KEYS[3]))
end
if my and my.closing ~= '' then return reply_with(my.closing == ' closing' and 'last' or 'flushed') end
if not my or my.number ~= tonumber(ARGV[2]) then return {'expired'} end
requeue(KEYS[4])
note_waiting()
local others = redis.call('HLEN', KEYS[2]) > 1
if ARGV[3] == 'keep' or others or (ARGV[3] == 'finished' and redis.call('ZCARD', KEYS[1]) > 0) then
  redis.call('HDEL', KEYS[2], ARGV[1])
  return reply_with('left')
end
my.closing = ' closing'
record(ARGV[1], my)
return reply_with('last')
