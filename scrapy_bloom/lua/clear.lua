-- KEYS: the filter. ARGV: its id. Returns the id of another filter, which stays.
local id, kind = filter.describe(KEYS[1])
if id ~= ARGV[1] then return id or kind end
filter.delete(KEYS[1])
