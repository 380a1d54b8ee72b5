-- KEYS: the filter. ARGV: its id, the items. Returns the flags (1: the filter has the item) and `news`, or of another filter an
-- empty list.
local filter, flags = load_filter(), ''
local f = filter.open(KEYS[1], ARGV[1])
if not f then return {} end
for i = 2, #ARGV do flags = flags .. (filter.has(f, ARGV[i]) and '1' or '0') end
return {flags, news(f)}
