-- Deletes the field ARGV[1] if it is ARGV[2], and if the hash KEYS[1] is still that of the filter ARGV[3]. Returns if the
-- field is not there now, in a hash of that filter.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' or redis.call('HGET', KEYS[1], 'filter') ~= ARGV[3] then return 0 end
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end
return 1 - redis.call('HEXISTS', KEYS[1], ARGV[1])
