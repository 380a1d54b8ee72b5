-- Puts the mark ARGV[1] into the SET KEYS[1], by which it is known again, and says if it was there: 1, or 0.
-- A key that holds anything else is left alone, and its kind is the answer.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'set' then return kind end
return 1 - redis.call('SADD', KEYS[1], ARGV[1])
