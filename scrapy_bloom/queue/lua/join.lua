-- Registers worker ARGV[1], whose lease is ARGV[2] and whose last exchange has the number ARGV[3]. If ARGV[4] is 1 the
-- worker is new, and the dead letters are queued again, but for those that too many workers died with. ARGV[5] is the
-- mark of its spider. Returns the workers, and how many requests wait.
--
-- A worker that is not new has lost its registration. If it is behind, the server has gone back to an earlier state. If
-- nobody is registered, the server has lost its data, or the others have ended. Otherwise they presumed it dead.
local workers = redis.call('HGETALL', KEYS[2])
for i = 1, #workers, 2 do
  if workers[i] ~= ARGV[1] then
    local other = parse(workers[i + 1])
    if other.spider ~= '' and ARGV[5] ~= '' and other.spider ~= ARGV[5] then return reply('foreign', {}, workers) end
    if other.closing ~= '' then return {'wait'} end
  end
end
local my = find(ARGV[1])
if my and my.closing ~= '' then return {'yours'} end
local said = 'ok'
-- It may have been carried out before, and come again or late. Otherwise a failover has lost what the worker did since.
if not my or my.number < tonumber(ARGV[3]) then
  if my then
    said = 'rolled_back'
  elseif ARGV[4] == '0' and tonumber(ARGV[3]) > 0 then
    said = #workers > 0 and 'presumed_dead' or 'lost'
  end
  if said == 'lost' then record_loss(0) end
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
return reply(said, {}, redis.call('HGETALL', KEYS[2]), redis.call('ZCARD', KEYS[1]))
