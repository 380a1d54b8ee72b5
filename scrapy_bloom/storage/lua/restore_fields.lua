-- Sets the fields and values ARGV[2..] of the hash KEYS[1] that it lacks, if it lacks the field ARGV[1].
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
for i = 2, #ARGV, 2 do redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
