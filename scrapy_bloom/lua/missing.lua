-- KEYS: the filter. ARGV: its id. Returns the number of shards that were lost, and are not replaced yet.
local filter = load_filter()
local f, missing = filter.open(KEYS[1], ARGV[1]), 0
for _, layer in ipairs(f and f.layers or {}) do
  for shard = 0, math.ceil(layer.blocks / layer.span) - 1 do
    if redis.call('STRLEN', layer.prefix .. shard) == 0 then missing = missing + 1 end
  end
end
return missing
