-- Delete a shard, of any epoch if ARGV[1] is empty.
if kind() ~= 'shard' then return 0 end
if ARGV[1] ~= '' and number(1, 5) ~= tonumber(ARGV[1]) then return 0 end
return redis.call('UNLINK', KEYS[1])
