-- Read KEYS[1] at once: its type, the server's time, and a hash's fields or a SET's size.
-- No single command returns the time and the fields together.
local kind = redis.call('TYPE', KEYS[1])['ok']
local content = {}
if kind == 'hash' then content = redis.call('HGETALL', KEYS[1])
elseif kind == 'set' then content = {redis.call('SCARD', KEYS[1])} end
return {kind, redis.call('TIME'), content}
