-- Returns the type of each key, all read at the same moment.
local kinds = {}
for i, key in ipairs(KEYS) do kinds[i] = redis.call('TYPE', key)['ok'] end
return kinds
