-- Write the version ARGV[2] of the forgotten items into a shard of the epoch ARGV[1], unless it has a later one. Returns
-- 1; 0 if the shard has the version of another set, which was lost; -1 without such a shard.
if kind() ~= 'shard' or number(0, 0) < 2 or number(1, 5) ~= tonumber(ARGV[1]) then return -1 end
local before = number(6, 7)
local ahead = before == 0 and 1 or (ARGV[2] - before + 16384) % 32768 - 16384
if math.abs(ahead) > 1024 then return 0 end
if ahead > 0 then redis.call('BITFIELD', KEYS[1], 'SET', 'u16', 48, 32768 + ARGV[2]) end
return 1
