-- Moves the SET KEYS[1] to KEYS[2], and the filter of the hash KEYS[3] to KEYS[1], in one step or not at all.
-- KEYS[4..]: each shard of the filter, followed by its new key. ARGV: the state of the import before and after, the mark
-- of the SET, its required number of members (or nothing), then each layer field of the filter, followed by its text.
-- Returns the outcome, or the first shard key that holds foreign data.
local function holds(key) return redis.call('TYPE', key)['ok'] end
local at = holds(KEYS[1])
if at == 'hash' then return redis.call('HGET', KEYS[1], 'import') == ARGV[2] and 'moved' or 'taken' end
if at ~= 'set' or redis.call('SISMEMBER', KEYS[1], ARGV[3]) == 0 then return 'gone' end
if ARGV[4] ~= '' and redis.call('SCARD', KEYS[1]) ~= tonumber(ARGV[4]) then return 'grown' end
if holds(KEYS[2]) ~= 'none' then return 'occupied' end
if holds(KEYS[3]) ~= 'hash' or redis.call('HGET', KEYS[3], 'import') ~= ARGV[1] then return 'taken' end
local layers = 0
for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
  if string.find(field, '^layer:') then layers = layers + 1 end
end
if layers ~= (#ARGV - 4) / 2 then return 'changed' end
for i = 5, #ARGV, 2 do
  if redis.call('HGET', KEYS[3], ARGV[i]) ~= ARGV[i + 1] then return 'changed' end
end
for i = 4, #KEYS, 2 do
  if kind(KEYS[i + 1]) == 'foreign' then return KEYS[i + 1] end
end
-- A full server refuses the first write, so either all writes are executed or none.
redis.call('HSET', KEYS[3], 'import', ARGV[2])
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('RENAME', KEYS[3], KEYS[1])
for i = 4, #KEYS, 2 do
  -- Remains of an earlier filter: no filter is in use while a SET is at its key.
  redis.call('UNLINK', KEYS[i + 1])
  -- The check of the members creates a lost shard again.
  if holds(KEYS[i]) ~= 'none' then redis.call('RENAME', KEYS[i], KEYS[i + 1]) end
end
return 'moved'
