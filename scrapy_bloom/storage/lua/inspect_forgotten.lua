-- Inspect the set KEYS[1] of forgotten items of the filter with the sentinel ARGV[1]. Returns its type, its version (empty
-- without the sentinel), the number of its items, and their bytes of memory (0 if the user may not ask).
local kind = redis.call('TYPE', KEYS[1])['ok']
local version = kind == 'zset' and redis.call('ZSCORE', KEYS[1], ARGV[1])
if not version then return {kind, '', 0, 0} end
local bytes = redis.pcall('MEMORY', 'USAGE', KEYS[1])
return {kind, version, redis.call('ZCARD', KEYS[1]) - 1, type(bytes) == 'number' and bytes or 0}
