-- Counts ARGV[3] items by the counter ARGV[1] of the hash KEYS[1], but for those that the field ARGV[2] says were counted
-- before, unless it would exceed ARGV[4] (-1: without limit). Returns how many were counted, or -1: it would.
local told = redis.call('HGET', KEYS[1], ARGV[1])
if not told then return 0 end
local number = tonumber(ARGV[3]) - tonumber(redis.call('HGET', KEYS[1], ARGV[2]) or 0)
if number <= 0 then return 0 end
local given, limit = tonumber(string.match(told, '%d+') or 0) + number, tonumber(ARGV[4])
if limit >= 0 and given > limit then return -1 end
local closed = tonumber(told) and '' or 'closed '
redis.call('HSET', KEYS[1], ARGV[1], closed .. string.format('%.0f', given), ARGV[2], ARGV[3])
return number
