-- KEYS and ARGV: see call.lua. Forgets the items; the flags are 1 for those that the filter had.
local filter = load_filter()
return numbered(filter, filter.forget, '')
