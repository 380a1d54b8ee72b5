-- Counts ARGV[2] items that were added without credit, by the counter ARGV[1] of the hash KEYS[1], closed or not.
local told = redis.call('HGET', KEYS[1], ARGV[1])
if not told then return 0 end
local given = tonumber(string.match(told, '%d+') or 0) + tonumber(ARGV[2])
local closed = tonumber(told) and '' or 'closed '
redis.call('HSET', KEYS[1], ARGV[1], closed .. string.format('%.0f', given))
return 1
