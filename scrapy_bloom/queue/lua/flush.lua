-- Deletes the queue, its dead letters, and what all workers have leased; with ARGV[2] only if a queue of that type is at its
-- key, or nothing. Those that are alive learn it with their next step, and join again.
if ARGV[2] ~= '' then
  local kind = redis.call('TYPE', KEYS[1])['ok']
  if kind ~= 'none' and kind ~= ARGV[2] then return {'foreign'} end
end
local leases = string.sub(KEYS[4], 1, #KEYS[4] - #ARGV[1])
for _, worker in ipairs(redis.call('HKEYS', KEYS[2])) do redis.call('DEL', leases .. worker) end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
return {'ok'}
