-- Write the version ARGV[2] of the forgotten items into a shard whose epoch is the five bytes ARGV[1], unless it has a
-- later one. Returns 1; 0 if the shard has the version of another set, which was lost; -1 without such a shard.
local header = redis.pcall('GETRANGE', KEYS[1], 0, 7)
if type(header) ~= 'string' or #header < 8 or string.byte(header) - string.byte(header) % 2 ~= 2 then return -1 end
if string.sub(header, 2, 6) ~= ARGV[1] then return -1 end
local before = string.byte(header, 7) * 256 + string.byte(header, 8)
local ahead = before == 0 and 1 or (ARGV[2] - before + 16384) % 32768 - 16384
if math.abs(ahead) > 1024 then return 0 end
if ahead > 0 then redis.call('BITFIELD', KEYS[1], 'SET', 'u16', 48, 32768 + ARGV[2]) end
return 1
