-- Claim items of the set KEYS[1] of forgotten items. ARGV[1] is the sentinel of the filter. For each item follow the
-- oldest layer that holds it, the version in its shard, and its member. Returns for each whether it was forgotten, and
-- is no more; nothing if the set was lost, or if the sentinel's version is not one of the same set.
local version = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not version then return {} end
for i = 3, #ARGV, 3 do
  if math.abs((version - ARGV[i] + 16384) % 32768 - 16384) > 1024 then return {} end
end
local claimed = {}
for i = 2, #ARGV, 3 do
  local layer = redis.call('ZSCORE', KEYS[1], ARGV[i + 2])
  if layer then redis.call('ZREM', KEYS[1], ARGV[i + 2]) end
  claimed[#claimed + 1] = layer and tonumber(layer) >= tonumber(ARGV[i]) and 1 or 0
end
return claimed
