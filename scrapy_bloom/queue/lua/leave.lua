-- Takes worker ARGV[1] out, whose last exchange has the number ARGV[2], and requeues what it has leased. The last one of
-- all closes the queue instead, unless ARGV[3] is `keep`, or is `finished` and something waits.
local my = find(ARGV[1])
local function answer(said)
  return reply(said, {}, false, redis.call('ZCARD', KEYS[1]), 0, redis.call('ZCARD', KEYS[3]))
end
if my and my.closing ~= '' then return answer('last') end
if not my or my.number ~= tonumber(ARGV[2]) then return {'expired'} end
requeue(KEYS[4])
note_waiting()
local others = redis.call('HLEN', KEYS[2]) > 1
if ARGV[3] == 'keep' or others or (ARGV[3] == 'finished' and redis.call('ZCARD', KEYS[1]) > 0) then
  redis.call('HDEL', KEYS[2], ARGV[1])
  return answer('left')
end
my.closing = ' closing'
record(ARGV[1], my)
return answer('last')
