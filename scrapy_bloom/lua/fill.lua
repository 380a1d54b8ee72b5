-- Add items to a filter that workers refuse to open. KEYS: the filter. ARGV: its id, the items. Returns 0 if it is another
-- filter, or has lost a shard.
local f = filter.open(KEYS[1], ARGV[1])
if not f then return 0 end
for i = 2, #ARGV do filter.check(f, ARGV[i]) end
filter.save(f)
return f.lost == 0 and 1 or 0
