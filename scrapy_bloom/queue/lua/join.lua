-- Registers worker ARGV[1] with the lease ARGV[2], the number ARGV[3] of its last sync and the
-- spider mark ARGV[5]. If ARGV[4] is 1 the worker is new, and dead letters are requeued unless a
-- worker has died with them. Returns the workers and the number of waiting requests.
--
-- A worker that is not new has lost its registration. A registration with a lower number was rolled
-- back by a failover. If no worker is registered, the server has lost its data, or the others have
-- left. Otherwise they presumed it dead.
local workers = redis.call('HGETALL', KEYS[2])
for i = 1, #workers, 2 do
  if workers[i] ~= ARGV[1] then
    local other = parse(workers[i + 1])
    if other.spider ~= '' and ARGV[5] ~= '' and other.spider ~= ARGV[5] then return reply('foreign', {}, workers) end
    if other.closing ~= '' then return {'wait'} end
  end
end
local my = find(ARGV[1])
if my and my.closing ~= '' then return {my.closing == ' closing' and 'yours' or 'flushed'} end
local status = 'ok'
-- A registration with this number or a higher one is that of a repeated or late join.
if not my or my.number < tonumber(ARGV[3]) then
  if my then
    status = 'rolled_back'
  elseif ARGV[4] == '0' and tonumber(ARGV[3]) > 0 then
    status = #workers > 0 and 'presumed_dead' or 'lost'
  end
  if status == 'lost' then record_loss(0) end
  requeue(KEYS[4])
  if ARGV[4] == '1' then
    local readable, members = {}, {}
    local dead = entries_of(KEYS[3], 0, -1)
    for i = 1, #dead, 2 do
      if deliveries_of(dead[i + 1]) == 0 then
        members[#members + 1] = dead[i + 1]
        readable[#readable + 1], readable[#readable + 2] = dead[i], dead[i + 1]
      end
    end
    take_out(KEYS[3], members)
    put(KEYS[1], readable)
  end
  local beats = next_beat(my and my.beats or 0)
  local number = tonumber(ARGV[3])
  record(ARGV[1], {lease = ARGV[2], number = number, void = '', beats = beats, closing = '', spider = ARGV[5]})
  note_waiting()
end
return reply(status, {}, redis.call('HGETALL', KEYS[2]), redis.call('ZCARD', KEYS[1]))
