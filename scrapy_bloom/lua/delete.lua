-- KEYS: the filter. ARGV: its id, or '' to delete nothing. Returns 1, or 0 if another filter is there by now.
local filter = load_filter()
if ARGV[1] == '' then return 1 end
if filter.describe(KEYS[1]) ~= ARGV[1] then return 0 end
filter.delete(KEYS[1])
return 1
