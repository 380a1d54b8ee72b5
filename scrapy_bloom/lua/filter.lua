-- The Bloom filter, behind block.lua, for any script: `local filter = load_filter()`.
--
--   filter.open(key, id)          the filter, or nil without one of this id; any id if id is nil
--   filter.check(f, item)         mark an item; true if it is new or was forgotten
--   filter.has(f, item)           true if the filter has an item; writes nothing
--   filter.places(f, item)        of each layer its index, the item's shard, whether it has the item, and whether the shard
--                                 is lost; and 1 if the item is forgotten
--   filter.forget(f, item)        let the next check be true; returns whether the filter had the item
--   filter.save(f)                once after all checks of a script
--   filter.allocate(f)            allocate a shard of the first layer; returns how many are still missing
--   filter.create(key, id, secret, parameters, sizes, ttl)
--   filter.describe(key)          id, secret, parameters; nil without a filter; nil and the type of foreign data
--   filter.delete(key)            delete the filter, or any other value at the key
--   filter.sweep(key, id, sizes)  delete the shards of a filter whose hash is gone
--
-- A layer is divided into shards, the keys `<tag>:<id>:<layer>:<shard>` in the slot of the hash. All shards of a layer
-- exist before the layer takes items: a missing one was lost. The hash at `key` has these fields:
--   secret, parameters            given at the creation
--   state                         `id ttl forgets lost forgotten;`, and a LAYER for each layer, oldest first; the newest one takes
--                                 items. ttl: ms, 0: none; forgets: calls that forgot items; lost: shards that were
--                                 lost; forgotten: forgotten items
--   count                         items in the newest layer
--   sizes                         `room blocks hashes span;` for each further layer; span: blocks of a shard
--   place, ready                  the next layer's place in `sizes`, and its shards that are allocated
--   `queue:<name>`, partitions    a queue whose workers use the filter, until the end of its crawl; its partitions
--   `f<16 bytes>`                 a forgotten item, with the newest layer of that moment
--   `@<name>`, callers            the last call of a caller, see call.lua; `name time;` of callers
--
-- Why it keeps its promises:
-- 1. Bits are never cleared, so "seen" stays true until its layer ends, and a client may cache it. What makes it false (forgotten
--    items, lost shards, ended layers) is counted in `state`, or has a time, so that clients empty their caches.
-- 2. `count` changes in the script that sets the bits. A full layer gets a successor before the next item, so no layer has more
--    items than its room, and the error rates of all layers add up to the filter's, see sizing.py.
-- 3. A shard shorter than a block was evicted or deleted. It is replaced by an empty one and counted in `lost`.
-- 4. With a TTL a layer takes items for a fifth of it, and lives for 1.25: each item is kept for 1.05 at least.
-- 5. A full server refuses a script's first write, and then the script has changed nothing.
local function load_filter()
  local filter = {}
  local HEAD = '^(%x+) (%d+) (%d+) (%d+) (%d+);'
  -- Index, place in `sizes`, creation of the generation (ms), items, room, items from which on the next layer is
  -- prepared, blocks, hashes, span.
  local LAYER = '(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+);'
  -- In TTLs: a generation takes items for a fifth, and its successor is prepared at its end. A layer lives for 1.25, and
  -- its keys expire after 1.5, if no script has deleted them.
  local GENERATION, PREPARED, LIFE, EXPIRY = 0.2, 0.18, 1.25, 1.5

  function filter.open(key, id)
    local state, count = unpack(call('HMGET', key, 'state', 'count'))
    local found, ttl, forgets, lost, forgotten = match(state or '', HEAD)
    if not found or id and found ~= id then return nil end
    local layers, last = {}, 0
    local f = {key = key, id = found, prefix = prefix_of(key, found), layers = layers, count = count + 0, forgets = forgets + 0,
      forgotten = forgotten + 0, lost = lost + 0, ttl = ttl + 0, added = 0, ended = {}}
    if f.ttl > 0 then f.now = filter.now() end
    for index, place, created, items, room, near, blocks, hashes, span in string.gmatch(state, LAYER) do
      local layer = {index = index, place = place, created = created, count = items, room = room + 0, near = near + 0,
        blocks = blocks + 0, hashes = hashes + 0, span = span + 0, prefix = f.prefix .. index .. ':'}
      local living = (f.ttl == 0 or f.now < created + LIFE * ttl) and layers or f.ended
      living[#living + 1], last = layer, index
    end
    f.last = last
    return f
  end

  -- Whether the newest layer's generation is over after this share of the TTL.
  local function is_over(f, share) return f.ttl > 0 and f.now >= f.layers[#f.layers].created + share * f.ttl end

  local function read(layer, item) return read_block(item, layer.prefix, layer.blocks, layer.span) end

  function filter.check(f, item)
    local layers = f.layers
    local forgotten = f.forgotten > 0 and filter.remember(f, item)
    local layer, block, name, from = layers[#layers], nil, nil, nil
    for i = #layers, 1, -1 do
      local b, n, place = read(layers[i], item)
      if #b < BLOCK then b = filter.replace(f, layers[i], n)
      -- A forgotten item is to be remembered for a whole TTL: older layers do not count.
      elseif not (forgotten and (i < #layers or is_over(f, GENERATION))) and has_bits(b, item, layers[i].hashes) then
        return forgotten
      end
      if not from then block, name, from = b, n, place end
    end
    if not layer or f.count >= layer.room or is_over(f, GENERATION) then
      layer = filter.append(f)
      block, name, from = read(layer, item)
    end
    call('SETRANGE', name, from, with_bits(block, item, layer.hashes))
    f.count, f.added = f.count + 1, f.added + 1
    return true
  end

  function filter.save(f)
    if f.added == 0 then return end
    call('HSET', f.key, 'count', f.count)
    local is_first = is_over(f, PREPARED)
    if is_first or f.count >= f.layers[#f.layers].near then filter.prepare_next(f, is_first) end
    f.added = 0
  end

  -- The functions that few scripts need: a closure costs a script more than a call of the server.
  local function define_others()
    local SIZE = '(%d+) (%d+) (%d+) (%d+);'
    -- So many blocks of the next layer are allocated for each new item: 8 MB, which take the server 5 ms, for 500.
    local BLOCKS_PER_ITEM = 65
    local ceil = math.ceil

    local function expire(name, time) call('PEXPIREAT', name, format('%d', time)) end

    local function forgotten_field(item) return 'f' .. string.sub(item, 1, 16) end

    local function delete_shards(prefix, index, shards)
      local deleted = 0
      for shard = 0, shards - 1 do deleted = deleted + call('UNLINK', prefix .. index .. ':' .. shard) end
      return deleted
    end

    function filter.now()
      local time = call('TIME')
      return time[1] * 1000 + math.floor(time[2] / 1000)
    end

    -- The layer to come after the live ones, not stored yet; the first of a generation, or a larger one.
    local function next_layer(f, is_first)
      local newest, layer, place, following = f.layers[#f.layers], nil, 0, 0
      local wanted, created = is_first and 1 or newest.place + 1, is_first and f.now or newest and newest.created or 0
      for room, blocks, hashes, span in string.gmatch(call('HGET', f.key, 'sizes'), SIZE) do
        place, following = place + 1, blocks + 0
        if place > wanted then break end
        layer = {index = f.last + 1, place = place, created = created, count = 0, room = room + 0, blocks = blocks + 0,
          hashes = hashes + 0, span = span + 0, shards = ceil(blocks / span), prefix = f.prefix .. f.last + 1 .. ':'}
      end
      layer.near = ceil(math.max(0.9 * layer.room, layer.room - following / BLOCKS_PER_ITEM))
      return layer
    end

    -- Allocate a shard, unless it is there.
    local function make(f, layer, shard)
      local name, size = layer.prefix .. shard, math.min(layer.span, layer.blocks - shard * layer.span) * BLOCK
      local length = call('STRLEN', name)
      -- SETRANGE allocates a new string exactly, and a longer one with room to spare.
      if length ~= size and length > 0 then call('UNLINK', name) end
      if length ~= size then call('SETRANGE', name, size - 1, '\0') end
      if f.ttl > 0 then expire(name, math.max(layer.created, f.now) + EXPIRY * f.ttl) end
    end

    -- Allocate so many shards of a layer to come; returns how many are still missing.
    local function prepare(f, layer, number)
      local place, ready = unpack(call('HMGET', f.key, 'place', 'ready'))
      local first = tonumber(place) == layer.place and tonumber(ready) or 0
      local last = math.min(layer.shards, first + number)
      for shard = first, last - 1 do make(f, layer, shard) end
      if last > first then call('HSET', f.key, 'place', layer.place, 'ready', last) end
      return layer.shards - last
    end

    -- The text of `state`. Layers that have ended stay there until their shards are deleted.
    local function state_of(f)
      local texts = {table.concat({f.id, format('%d', f.ttl), f.forgets, f.lost, f.forgotten}, ' ')}
      for _, list in ipairs({f.ended, f.layers}) do
        for _, l in ipairs(list) do
          texts[#texts + 1] = table.concat({l.index, l.place, l.created, l.count, l.room, l.near, l.blocks, l.hashes, l.span}, ' ')
        end
      end
      return table.concat(texts, ';') .. ';'
    end

    function filter.append(f)
      local newest = f.layers[#f.layers]
      local layer = next_layer(f, not newest or is_over(f, GENERATION))
      for shard = 0, layer.shards - 1 do make(f, layer, shard) end
      if newest then newest.count = f.count end
      local ended = f.ended
      f.layers[#f.layers + 1], f.last, f.count, f.ended = layer, layer.index, 0, {}
      call('HSET', f.key, 'state', state_of(f), 'count', 0, 'place', 0, 'ready', 0)
      if f.ttl > 0 then expire(f.key, f.now + EXPIRY * f.ttl) end
      for _, each in ipairs(ended) do delete_shards(f.prefix, each.index, ceil(each.blocks / each.span)) end
      return layer
    end

    function filter.prepare_next(f, is_first)
      local layer = next_layer(f, is_first)
      prepare(f, layer, ceil(f.added * BLOCKS_PER_ITEM / layer.span))
    end

    function filter.allocate(f) return #f.layers > 0 and 0 or prepare(f, next_layer(f, true), 1) end

    -- Replace a lost shard; returns the bytes of a block.
    function filter.replace(f, layer, name)
      make(f, layer, sub(name, #layer.prefix + 1) + 0)
      f.lost = f.lost + 1
      call('HSET', f.key, 'state', state_of(f))
      return string.rep('\0', BLOCK)
    end

    -- Whether an item was forgotten; it is so no more.
    function filter.remember(f, item)
      if call('HEXISTS', f.key, forgotten_field(item)) == 0 then return false end
      f.forgotten = f.forgotten - 1
      -- A full server would permit an HDEL, and all writes behind it.
      call('HSET', f.key, 'state', state_of(f))
      return call('HDEL', f.key, forgotten_field(item)) == 1
    end

    function filter.has(f, item)
      if f.forgotten > 0 and call('HEXISTS', f.key, forgotten_field(item)) == 1 then return false end
      for i = #f.layers, 1, -1 do
        local block = read(f.layers[i], item)
        if #block == BLOCK and has_bits(block, item, f.layers[i].hashes) then return true end
      end
      return false
    end

    function filter.places(f, item)
      local places = {}
      for i, layer in ipairs(f.layers) do
        local block, name = read(layer, item)
        local is_lost = #block < BLOCK
        places[i] = {layer.index, name, not is_lost and has_bits(block, item, layer.hashes) and 1 or 0, is_lost and 1 or 0}
      end
      return places, call('HEXISTS', f.key, forgotten_field(item))
    end

    function filter.forget(f, item)
      if not filter.has(f, item) then return false end
      f.forgotten = f.forgotten + 1
      if not f.has_forgotten then f.has_forgotten, f.forgets = true, f.forgets + 1 end
      call('HSET', f.key, forgotten_field(item), f.last, 'state', state_of(f))
      return true
    end

    function filter.create(key, id, secret, parameters, sizes, ttl)
      call('HSET', key, 'secret', secret, 'parameters', parameters, 'state', id .. ' ' .. ttl .. ' 0 0 0;', 'count', 0,
        'sizes', sizes, 'place', 0, 'ready', 0)
      if ttl + 0 > 0 then expire(key, filter.now() + EXPIRY * ttl) end
    end

    function filter.describe(key)
      local kind = call('TYPE', key).ok
      local v = kind == 'hash' and call('HMGET', key, 'state', 'secret', 'parameters') or {}
      if not (v[1] and v[2] and v[3]) then return nil, kind ~= 'none' and kind or nil end
      return match(v[1], '^%x+'), v[2], v[3]
    end

    function filter.delete(key)
      if filter.describe(key) then
        local f = filter.open(key)
        for _, layer in ipairs(f.ended) do f.layers[#f.layers + 1] = layer end
        for _, layer in ipairs(f.layers) do delete_shards(f.prefix, layer.index, ceil(layer.blocks / layer.span)) end
        delete_shards(f.prefix, f.last + 1, call('HGET', key, 'ready'))
      end
      call('UNLINK', key)
    end

    function filter.sweep(key, id, sizes)
      local prefix, index = prefix_of(key, id), 0
      for _, blocks, _, span in string.gmatch(sizes, SIZE) do
        index = index + 1
        if delete_shards(prefix, index, ceil(blocks / span)) == 0 then return end
      end
    end
  end
  setmetatable(filter, {__index = function(_, name)
    define_others()
    return rawget(filter, name)
  end})
  return filter
end
