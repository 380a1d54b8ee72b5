-- Deletes the queue, its dead letters, and what all workers have leased. Those that are alive learn it with their next
-- step, and join again.
local leases = string.sub(KEYS[4], 1, #KEYS[4] - #ARGV[1])
for _, worker in ipairs(redis.call('HKEYS', KEYS[2])) do redis.call('DEL', leases .. worker) end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
return {'ok'}
