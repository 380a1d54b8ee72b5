-- Replaces the state ARGV[1] of an import in the hash KEYS[1] by ARGV[2]. Idempotent.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' then return 0 end
local state = redis.call('HGET', KEYS[1], 'import')
if state == ARGV[2] then return 1 end
if state ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'import', ARGV[2])
return 1
