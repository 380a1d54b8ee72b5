-- Write a part of a filter that workers refuse to open. KEYS: the filter. ARGV: its id; a shard, a place in it and bytes, or
-- an empty text, and fields of the hash. Returns 0 if it is another filter.
local f = filter.open(KEYS[1], ARGV[1])
if not f then return 0 end
if ARGV[2] == '' then redis.call('HSET', KEYS[1], unpack(ARGV, 3))
else redis.call('SETRANGE', f.prefix .. ARGV[2], ARGV[3], ARGV[4]) end
return 1
