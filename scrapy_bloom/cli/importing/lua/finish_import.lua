-- Lets workers open the filter of the hash KEYS[1] if ARGV[1] is the state of its import. Idempotent.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' then return 0 end
if redis.call('HGET', KEYS[1], 'filter') ~= ARGV[2] then return 0 end
local state = redis.call('HGET', KEYS[1], 'import')
if state and state ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], 'unfinished', 'import', 'prefix')
return 1
