-- KEYS: the filter. ARGV: its id, the items.
local f = filter.open(KEYS[1], ARGV[1])
if not f then return {'GONE'} end
return call.reply(f, 'OK', call.flags(f, filter.has, 2))
