-- Count ARGV[2] items that were added without credit, in the counter ARGV[1] of the hash KEYS[1].
-- A closed counter stays closed. Returns whether there is a counter.
local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then return 0 end
local granted = tonumber(string.match(counter, '%d+') or 0) + tonumber(ARGV[2])
local closed = tonumber(counter) and '' or 'closed '
redis.call('HSET', KEYS[1], ARGV[1], closed .. string.format('%.0f', granted))
return 1
