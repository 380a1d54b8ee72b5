-- Take back room for ARGV[2] items, unless the counter ARGV[1] of the hash KEYS[1] is closed or missing.
local given = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '')
if not given then return 0 end
local number = math.min(given, tonumber(ARGV[2]))
if number > 0 then redis.call('HINCRBY', KEYS[1], ARGV[1], -number) end
return 1
