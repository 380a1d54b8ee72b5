-- Delete the field ARGV[1] of value ARGV[2] if the hash KEYS[1] still belongs to the filter ARGV[3].
-- Returns 1 if the hash belongs to that filter and lacks the field now.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' or redis.call('HGET', KEYS[1], 'filter') ~= ARGV[3] then return 0 end
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end
return 1 - redis.call('HEXISTS', KEYS[1], ARGV[1])
