-- Set the field ARGV[1] to ARGV[2] unless it exists, if the hash KEYS[1] still belongs to the filter
-- ARGV[3]. ARGV[4], if given, is the expiry.
if redis.call('HGET', KEYS[1], 'filter') ~= ARGV[3] then return 0 end
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
keep_until(ARGV[4])
return 1
