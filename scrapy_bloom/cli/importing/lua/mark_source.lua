-- Adds the mark ARGV[1] to the SET KEYS[1], which identifies it. Returns 1 if the mark was there, else 0.
-- Any other type is left alone and returned.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'set' then return kind end
return 1 - redis.call('SADD', KEYS[1], ARGV[1])
