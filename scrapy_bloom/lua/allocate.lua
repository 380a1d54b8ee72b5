-- KEYS: the filter. ARGV: its id. Returns how many shards of the first layer are missing.
local filter = load_filter()
local f = filter.open(KEYS[1], ARGV[1])
return f and filter.allocate(f) or 0
