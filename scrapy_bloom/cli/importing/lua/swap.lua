-- Moves the SET KEYS[1] to KEYS[2], and the hash KEYS[3] of the filter to KEYS[1], in one step or not at all. The shards of
-- the filter have their final names already. ARGV: the state of the import before and after, the mark of the SET, and its
-- required number of members (or nothing). Returns the outcome.
local function holds(key) return redis.call('TYPE', key)['ok'] end
local at = holds(KEYS[1])
if at == 'hash' then return redis.call('HGET', KEYS[1], 'import') == ARGV[2] and 'moved' or 'taken' end
if at ~= 'set' or redis.call('SISMEMBER', KEYS[1], ARGV[3]) == 0 then return 'gone' end
if ARGV[4] ~= '' and redis.call('SCARD', KEYS[1]) ~= tonumber(ARGV[4]) then return 'grown' end
if holds(KEYS[2]) ~= 'none' then return 'occupied' end
if holds(KEYS[3]) ~= 'hash' or redis.call('HGET', KEYS[3], 'import') ~= ARGV[1] then return 'taken' end
-- A full server refuses the first write, so either all writes are executed or none.
redis.call('HSET', KEYS[3], 'import', ARGV[2])
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('RENAME', KEYS[3], KEYS[1])
return 'moved'
