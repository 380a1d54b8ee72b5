-- Sets the field ARGV[1] to ARGV[2] unless it is there, if the hash KEYS[1] is still that of the filter ARGV[3]. Where it
-- was set, the hash is kept until ARGV[4], if that is said.
if redis.call('HGET', KEYS[1], 'filter') ~= ARGV[3] then return 0 end
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
keep_until(ARGV[4])
return 1
