-- Registers worker ARGV[1], whose lease is ARGV[2] and whose last exchange has the number ARGV[3]. If ARGV[4] is 1, the
-- dead letters are queued again. Returns the workers, and how many requests wait.
local workers = redis.call('HGETALL', KEYS[2])
for i = 1, #workers, 2 do
  if workers[i] ~= ARGV[1] and string.find(workers[i + 1], 'closing', 1, true) then return {'wait'} end
end
local my = find(ARGV[1])
if my and my.closing ~= '' then return {'yours'} end
-- It may have been carried out before, and come again or late. Otherwise a failover has lost what the worker did since.
if not my or my.number < tonumber(ARGV[3]) then
  requeue(KEYS[4])
  if ARGV[4] == '1' then requeue(KEYS[3]) end
  local beats = next_beat(my and my.beats or 0)
  record(ARGV[1], {lease = ARGV[2], number = tonumber(ARGV[3]), void = '', beats = beats, closing = ''})
end
return {'ok', {}, redis.call('HGETALL', KEYS[2]), redis.call('ZCARD', KEYS[1])}
