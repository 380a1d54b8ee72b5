-- Deletes the queue, its dead letters and all leases. With ARGV[3], the queue must be of that type
-- or missing, and all registered workers must be among the arguments that follow. Living workers
-- expire with their next operation, and join again.
--
-- With ARGV[2], its lease, worker ARGV[1] is registered as closing the queue: no worker joins
-- before the closing ends.
local workers = redis.call('HKEYS', KEYS[2])
if ARGV[3] ~= '' then
  local kind = redis.call('TYPE', KEYS[1])['ok']
  if kind ~= 'none' and kind ~= ARGV[3] then return {'foreign'} end
  local is_known = {}
  for i = 4, #ARGV do is_known[ARGV[i]] = true end
  for _, worker in ipairs(workers) do
    if not is_known[worker] then return {'foreign'} end
  end
end
local before = redis.call('HGET', KEYS[2], ARGV[1]) or ''
local leases = string.sub(KEYS[4], 1, #KEYS[4] - #ARGV[1])
for _, worker in ipairs(workers) do redis.call('DEL', leases .. worker) end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[5], KEYS[6])
if ARGV[2] ~= '' then
  local time = redis.call('TIME')
  local beats = math.max(time[1] * 1000 + math.floor(time[2] / 1000), 1 + (string.match(before, '^%S+ %S+ (%d+)') or 0))
  redis.call('HSET', KEYS[2], ARGV[1], string.format('%s 0 %.0f closing flush', ARGV[2], beats))
end
return {'ok'}
