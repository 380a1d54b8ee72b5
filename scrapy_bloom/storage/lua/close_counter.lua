-- Lets the counter ARGV[1] of the hash KEYS[1] give no more, and says how much it gave; -1: there is none.
local told = redis.call('HGET', KEYS[1], ARGV[1])
if not told then return -1 end
if tonumber(told) then redis.call('HSET', KEYS[1], ARGV[1], 'closed ' .. told) end
return tonumber(string.match(told, '%d+') or 0)
