-- Write ARGV[3] into a shard of the epoch ARGV[1], from byte ARGV[2] on. Returns whether it was there.
if kind() ~= 'shard' or number(0, 0) < 2 or number(1, 5) ~= tonumber(ARGV[1]) then return 0 end
redis.call('SETRANGE', KEYS[1], ARGV[2], ARGV[3])
return 1
