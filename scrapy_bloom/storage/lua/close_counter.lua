-- Close the counter ARGV[1] of the hash KEYS[1]. Returns the granted room; -1 without a counter.
local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then return -1 end
if tonumber(counter) then redis.call('HSET', KEYS[1], ARGV[1], 'closed ' .. counter) end
return tonumber(string.match(counter, '%d+') or 0)
