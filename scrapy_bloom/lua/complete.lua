-- Let everybody open a filter that is complete. KEYS: the filter, the place of its SET. ARGV: its id, the server's run id
-- at the beginning, the parameters, the number of imported members, whether to delete the SET.
-- Returns GONE for another filter, LOST if the server may have lost a part, and otherwise OK and the number of items.
local call, key = redis.call, KEYS[1]
local f = filter.open(key, ARGV[1])
if not f then return {'GONE'} end
local is_whole = string.find(call('INFO', 'server'), 'run_id:' .. ARGV[2], 1, true)
for _, layer in ipairs(f.layers) do
  local expiry = string.format('%.0f', layer.created + 1.5 * f.ttl) -- as `filter.lua` has it
  for shard = 0, math.ceil(layer.blocks / layer.span) - 1 do
    local blocks = math.min(layer.span, layer.blocks - shard * layer.span)
    is_whole = is_whole and call('STRLEN', layer.prefix .. shard) == 256 * blocks
    if f.ttl > 0 then call('PEXPIREAT', layer.prefix .. shard, expiry) end
  end
  if f.ttl > 0 then call('PEXPIREAT', key, expiry) end
end
if not is_whole then return {'LOST'} end
call('HDEL', key, 'imported') -- a full server refuses an HSET that is the first write of a script
call('HSET', key, 'parameters', ARGV[3], 'imported', ARGV[4])
if ARGV[5] == '1' then call('UNLINK', KEYS[2]) end
local count = f.count
for i = 1, #f.layers - 1 do count = count + f.layers[i].count end
return {'OK', count}
