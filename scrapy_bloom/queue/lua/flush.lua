-- Deletes the queue, its dead letters, and what all workers have leased. With ARGV[2] it does so only if a queue of that
-- type is at its key, or nothing, and if all workers are among the arguments that follow. Those that are alive learn it
-- with their next step, and join again.
local workers = redis.call('HKEYS', KEYS[2])
if ARGV[2] ~= '' then
  local kind = redis.call('TYPE', KEYS[1])['ok']
  if kind ~= 'none' and kind ~= ARGV[2] then return {'foreign'} end
  local is_known = {}
  for i = 3, #ARGV do is_known[ARGV[i]] = true end
  for _, worker in ipairs(workers) do
    if not is_known[worker] then return {'foreign'} end
  end
end
local leases = string.sub(KEYS[4], 1, #KEYS[4] - #ARGV[1])
for _, worker in ipairs(workers) do redis.call('DEL', leases .. worker) end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[5], KEYS[6])
return {'ok'}
