-- Set the missing ones of the fields and values ARGV[2..] of the hash KEYS[1] if it lacks the field
-- ARGV[1]. An odd argument at the end is the expiry.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
local last = #ARGV - (#ARGV + 1) % 2
for i = 2, last, 2 do redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end
keep_until(ARGV[last + 1])
return 1
