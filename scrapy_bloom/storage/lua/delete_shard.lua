-- Delete a shard, of any epoch if ARGV[1] is empty. If ARGV[2] is 1, only if items were forgotten.
if kind() ~= 'shard' then return 0 end
if ARGV[1] ~= '' and number(1, 5) ~= tonumber(ARGV[1]) then return 0 end
if ARGV[2] == '1' and number(6, 7) == 0 then return 0 end
return redis.call('UNLINK', KEYS[1])
