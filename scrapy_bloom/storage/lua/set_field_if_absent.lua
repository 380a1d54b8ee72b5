-- Set the field ARGV[1] of the hash KEYS[1] to ARGV[2] unless it exists. ARGV[3] is the expiry.
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
keep_until(ARGV[3])
return 1
