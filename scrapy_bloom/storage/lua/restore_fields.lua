-- Sets the fields and values ARGV[2..] of the hash KEYS[1] that it lacks, if it lacks the field ARGV[1]. One argument that
-- is left over at the end is the time until which the hash is kept.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
local last = #ARGV - (#ARGV + 1) % 2
for i = 2, last, 2 do redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end
keep_until(ARGV[last + 1])
return 1
