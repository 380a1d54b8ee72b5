-- One look at KEYS[1]: its type, the server's time, and the fields of a hash or the size of a set.
-- A script, since no single command gives the time and the fields together.
local kind = redis.call('TYPE', KEYS[1])['ok']
local content = {}
if kind == 'hash' then content = redis.call('HGETALL', KEYS[1])
elseif kind == 'set' then content = {redis.call('SCARD', KEYS[1])} end
return {kind, redis.call('TIME'), content}
