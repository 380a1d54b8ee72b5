-- Delete the hash KEYS[1] if its field 'filter' is ARGV[1] and it has no reference.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' or redis.call('HGET', KEYS[1], 'filter') ~= ARGV[1] then return 0 end
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(name, 1, 5) == 'user:' then return 0 end
end
return redis.call('UNLINK', KEYS[1])
