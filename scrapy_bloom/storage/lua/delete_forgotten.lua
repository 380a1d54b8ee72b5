-- Delete the set KEYS[1] of forgotten items. Data of another type stays. Returns whether something was deleted.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'zset' then return 0 end
return redis.call('UNLINK', KEYS[1])
