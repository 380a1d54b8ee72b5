-- KEYS: the filter. ARGV: its id, an item. Returns the result of `filter.places`, of another filter nothing.
local filter = load_filter()
local f = filter.open(KEYS[1], ARGV[1])
return f and {filter.places(f, ARGV[2])} or {{}, 0}
