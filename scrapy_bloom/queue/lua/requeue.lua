-- Requeues the leases KEYS[7] of the dead worker ARGV[2] for worker ARGV[1], if the dead worker's
-- registration is still ARGV[3]. Requests that ARGV[6] workers have died with become dead letters;
-- 0 is no bound. Returns these dead letters and the number of requeued requests.
--
-- If the dead worker was closing the queue, an unregistered worker takes over the closing with its
-- mark, the lease ARGV[4] and the number ARGV[5].
if redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[3] then return {'alive'} end
local my = find(ARGV[1])
local closing = parse(ARGV[3]).closing
if closing ~= '' then
  if my then return {'alive'} end
  redis.call('HDEL', KEYS[2], ARGV[2])
  local beats = next_beat(0)
  local number = tonumber(ARGV[5])
  record(ARGV[1], {lease = ARGV[4], number = number, void = '', beats = beats, closing = closing, spider = ''})
  return {'yours'}
end
if not my or my.closing ~= '' then return {'expired'} end
local most = tonumber(ARGV[6])
local leased = entries_of(KEYS[7], 0, -1)
local requeued, buried = {}, {}
redis.call('DEL', KEYS[7])
for i = 1, #leased, 2 do
  local target, member = requeued, leased[i + 1]
  if most > 0 then
    local count, starter = deliveries_of(member)
    if count == 0 or starter == ARGV[2] then
      count = count + 1
      write(KEYS[6], member, count)
      if count >= most then target = buried end
    end
  end
  target[#target + 1], target[#target + 2] = leased[i], member
end
put(KEYS[1], requeued)
put(KEYS[3], buried)
redis.call('HDEL', KEYS[2], ARGV[2])
note_waiting()
return reply('requeued', buried, false, 0, 0, 0, #requeued / 2)
