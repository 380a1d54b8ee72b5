-- KEYS: the filter. ARGV: its id. Returns the sizes of the first layer, lost shards, of each live layer room, blocks,
-- hashes, span, items and creation, and the number of forgotten items.
local filter = load_filter()
local f = filter.open(KEYS[1], ARGV[1])
if not f then return {'GONE'} end
local layers = {}
for i, l in ipairs(f.layers) do
  layers[i] = {l.room, l.blocks, l.hashes, l.span, (i == #f.layers and f.count or l.count) + 0, l.created + 0}
end
return {'OK', redis.call('HGET', KEYS[1], 'sizes'), f.lost, layers, f.forgotten}
