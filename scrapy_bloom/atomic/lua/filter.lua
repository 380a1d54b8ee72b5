-- The Bloom filter, for any script: a script is this text and its own.
--
--   filter.open(key, id)          the filter, or nil without one of this id; any id if id is nil
--   filter.check(f, item)         mark an item; true if it is new or was forgotten
--   filter.has(f, item)           true if the filter has an item; writes nothing
--   filter.forget(f, item)        let the next check be true; returns whether the filter had the item
--   filter.save(f)                once after all checks of a script
--   filter.allocate(f)            allocate a shard of the first layer; returns how many are still missing
--   filter.create(key, id, secret, parameters, sizes, ttl)
--   filter.describe(key)          id, secret, parameters; nil without a filter; nil and the type of foreign data
--   filter.delete(key)            delete the filter, or any other value at the key
--   filter.add_user(key, user), filter.remove_user(key, user)     the latter returns whether no user is left
--
-- An item is 64 bytes, as good as random. Bytes 1 to 6 choose a block of 256 bytes in each layer, as a fraction of the
-- layer. Bytes 9 to 36 each choose a byte of the block, and the last three bits of bytes 37 to 64 a bit of that byte.
--
-- A layer is divided into shards, the keys `<tag>:<id>:<layer>:<shard>` in the slot of the hash. All shards of a layer
-- exist before the layer takes items: a missing one was lost. The hash at `key` has these fields:
--   id, secret, parameters        given at the creation
--   ttl                           milliseconds, 0 for ever
--   sizes                         `room blocks hashes span;` for each further layer; span: blocks of a shard
--   layers                        see LAYER, oldest first; the newest one takes items
--   count                         items in the newest layer
--   place, ready                  the next layer's place in `sizes`, and its shards that are allocated
--   forgets, forgotten            calls that forgot items; forgotten items
--   lost                          shards that were lost
--   users, `user:<name>`          number of users; each user
--   `f<16 bytes>`                 a forgotten item, with the newest layer of that moment
--
-- A full server refuses a script's first write, and then the script has changed nothing.
local filter = {}
do
  local call, byte, char, match, gmatch = redis.call, string.byte, string.char, string.match, string.gmatch
  local BLOCK = 256
  local MASKS = {[0] = 1, 2, 4, 8, 16, 32, 64, 128}
  -- Index, place in `sizes`, creation of the generation (ms), items, room, items from which on the next layer is
  -- prepared, blocks, hashes, span.
  local LAYER = '(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+);'
  -- A shard of the next layer is allocated for so many new items: 8 MB take the server some 5 ms.
  local ITEMS_PER_SHARD = 500
  -- In TTLs: a generation takes items for a fifth, and its successor is prepared at its end. A layer lives for 1.25, and
  -- its keys expire after 1.5, if no script has deleted them.
  local GENERATION, PREPARED, LIFE, EXPIRY = 0.2, 0.18, 1.25, 1.5

  local function prefix_of(key, id)
    return (match(key, '^[^{]*{[^}]+}') and key or '{' .. key .. '}') .. ':' .. id .. ':'
  end

  local function expire(name, time) call('PEXPIREAT', name, string.format('%.0f', time)) end

  local function now_ms()
    local time = call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
  end

  local function shards_of(layer) return math.ceil(layer.blocks / layer.span) end

  local function forgotten_field(item) return 'f' .. string.sub(item, 1, 16) end

  function filter.open(key, id)
    local v = call('HMGET', key, 'id', 'layers', 'count', 'forgets', 'forgotten', 'lost', 'ttl')
    if not v[1] or id and v[1] ~= id then return nil end
    local ttl, layers, ended = tonumber(v[7]), {}, {}
    local f = {key = key, id = v[1], prefix = prefix_of(key, v[1]), ttl = ttl, now = ttl > 0 and now_ms() or 0,
      layers = layers, ended = ended, last = 0, count = tonumber(v[3]), added = 0, forgets = tonumber(v[4]),
      forgotten = tonumber(v[5]), lost = tonumber(v[6])}
    for index, place, created, count, room, near, blocks, hashes, span in gmatch(v[2], LAYER) do
      local layer = {index = index + 0, place = place + 0, created = created + 0, count = count + 0, room = room + 0,
        near = near + 0, blocks = blocks + 0, hashes = hashes + 0, span = span + 0, prefix = f.prefix .. index .. ':'}
      local live = ttl == 0 or f.now < layer.created + LIFE * ttl
      if live then layers[#layers + 1] = layer else ended[#ended + 1] = layer end
      f.last = layer.index
    end
    return f
  end

  -- Whether the newest layer's generation is over after this share of the TTL; without a layer, one must begin.
  local function is_over(f, share)
    local newest = f.layers[#f.layers]
    return not newest or f.ttl > 0 and f.now >= newest.created + share * f.ttl
  end

  -- The layer to come after the live ones, not stored yet.
  local function next_layer(f, is_generation)
    local newest = f.layers[#f.layers]
    local wanted, place = is_generation and 1 or newest.place + 1, 0
    local layer, following = nil, 0
    for room, blocks, hashes, span in gmatch(call('HGET', f.key, 'sizes'), '(%d+) (%d+) (%d+) (%d+);') do
      place = place + 1
      if place <= wanted then
        layer = {index = f.last + 1, place = place, created = is_generation and f.now or newest.created, count = 0,
          room = room + 0, blocks = blocks + 0, hashes = hashes + 0, span = span + 0}
      end
      following = math.ceil(blocks / span)
      if place > wanted then break end
    end
    layer.near = math.ceil(math.max(0.9 * layer.room, layer.room - ITEMS_PER_SHARD * following))
    layer.prefix = f.prefix .. layer.index .. ':'
    return layer
  end

  -- Allocate a shard, unless it is there.
  local function make(f, layer, shard)
    local name, size = layer.prefix .. shard, math.min(layer.span, layer.blocks - shard * layer.span) * BLOCK
    local length = call('STRLEN', name)
    if length ~= size then
      -- SETRANGE allocates a new string exactly, and a longer one with room to spare.
      if length > 0 then call('UNLINK', name) end
      call('SETRANGE', name, size - 1, '\0')
    end
    if f.ttl > 0 then expire(name, math.max(layer.created, f.now) + EXPIRY * f.ttl) end
  end

  local function prepare(f, layer, number)
    local place, ready = unpack(call('HMGET', f.key, 'place', 'ready'))
    place, ready = tonumber(place), tonumber(ready)
    if place ~= layer.place then ready = 0 end
    local last = math.min(shards_of(layer), ready + number)
    if last > ready then
      for shard = ready, last - 1 do make(f, layer, shard) end
      call('HSET', f.key, 'place', layer.place, 'ready', last)
    end
    return shards_of(layer) - last
  end

  local function forget_old_fields(f, oldest)
    local fields, old = call('HGETALL', f.key), 0
    for i = 1, #fields, 2 do
      if #fields[i] == 17 and byte(fields[i]) == 102 and tonumber(fields[i + 1]) < oldest then
        old = old + call('HDEL', f.key, fields[i])
      end
    end
    f.forgotten = call('HINCRBY', f.key, 'forgotten', -old)
  end

  local function append(f)
    local is_generation, newest = is_over(f, GENERATION), f.layers[#f.layers]
    local layer = next_layer(f, is_generation)
    for shard = 0, shards_of(layer) - 1 do make(f, layer, shard) end
    if newest then newest.count = f.count end
    f.layers[#f.layers + 1], f.last, f.count = layer, layer.index, 0
    local texts = {}
    for i, l in ipairs(f.layers) do
      texts[i] = table.concat({l.index, l.place, l.created, l.count, l.room, l.near, l.blocks, l.hashes, l.span}, ' ') .. ';'
    end
    call('HSET', f.key, 'layers', table.concat(texts), 'count', 0, 'place', 0, 'ready', 0)
    if f.ttl > 0 then expire(f.key, f.now + EXPIRY * f.ttl) end
    for _, ended in ipairs(f.ended) do
      for shard = 0, shards_of(ended) - 1 do call('UNLINK', ended.prefix .. shard) end
    end
    if #f.ended > 0 and f.forgotten > 0 then forget_old_fields(f, f.layers[1].index) end
    f.ended = {}
    return layer
  end

  -- The block of an item, whose fraction of a layer is `at`; and its shard, key and place.
  local function read(layer, at)
    local block = at * layer.blocks
    block = block - block % 1
    local place = block % layer.span
    local shard = (block - place) / layer.span
    local name, first = layer.prefix .. shard, place * BLOCK
    return call('GETRANGE', name, first, first + BLOCK - 1), name, first, shard
  end

  local function fraction(item)
    local a, b, c, d, e, g = byte(item, 1, 6)
    return (((((g / 256 + e) / 256 + d) / 256 + c) / 256 + b) / 256 + a) / 256
  end

  local function holds(block, bits, hashes)
    for i = 1, hashes do
      local mask = MASKS[bits[i + 28] % 8]
      if byte(block, bits[i] + 1) % (mask + mask) < mask then return false end
    end
    return true
  end

  function filter.check(f, item)
    local layers, at, bits = f.layers, fraction(item), {byte(item, 9, 64)}
    local forgotten = f.forgotten > 0 and call('HDEL', f.key, forgotten_field(item)) == 1
    if forgotten then f.forgotten = call('HINCRBY', f.key, 'forgotten', -1) end
    local newest, block, name, first, shard = #layers, nil, nil, nil, nil
    for i = newest, 1, -1 do
      local layer = layers[i]
      local b, n, p, s = read(layer, at)
      if #b < BLOCK then
        make(f, layer, s)
        f.lost, b = call('HINCRBY', f.key, 'lost', 1), call('GETRANGE', n, p, p + BLOCK - 1)
      elseif (i == newest or not forgotten) and holds(b, bits, layer.hashes) then return forgotten end
      if i == newest then block, name, first = b, n, p end
    end
    local layer = layers[newest]
    if not layer or f.count >= layer.room or f.ttl > 0 and is_over(f, GENERATION) then
      layer = append(f)
      block, name, first = read(layer, at)
    end
    local bytes = {byte(block, 1, BLOCK)}
    for i = 1, layer.hashes do
      local place, mask = bits[i] + 1, MASKS[bits[i + 28] % 8]
      local value = bytes[place]
      if value % (mask + mask) < mask then bytes[place] = value + mask end
    end
    call('SETRANGE', name, first, char(unpack(bytes)))
    f.count, f.added = f.count + 1, f.added + 1
    return true
  end

  function filter.has(f, item)
    if f.forgotten > 0 and call('HEXISTS', f.key, forgotten_field(item)) == 1 then return false end
    local at, bits = fraction(item), {byte(item, 9, 64)}
    for i = #f.layers, 1, -1 do
      local block = read(f.layers[i], at)
      if #block == BLOCK and holds(block, bits, f.layers[i].hashes) then return true end
    end
    return false
  end

  function filter.forget(f, item)
    if not filter.has(f, item) then return false end
    call('HSET', f.key, forgotten_field(item), f.last)
    f.forgotten = call('HINCRBY', f.key, 'forgotten', 1)
    if not f.has_forgotten then f.has_forgotten, f.forgets = true, call('HINCRBY', f.key, 'forgets', 1) end
    return true
  end

  function filter.save(f)
    if f.added == 0 then return end
    call('HSET', f.key, 'count', f.count)
    local is_generation = f.ttl > 0 and is_over(f, PREPARED)
    if is_generation or f.count >= f.layers[#f.layers].near then
      prepare(f, next_layer(f, is_generation), math.ceil(f.added / ITEMS_PER_SHARD))
    end
    f.added = 0
  end

  function filter.create(key, id, secret, parameters, sizes, ttl)
    call('HSET', key, 'id', id, 'secret', secret, 'parameters', parameters, 'sizes', sizes, 'ttl', ttl, 'layers', '',
      'count', 0, 'place', 0, 'ready', 0, 'forgets', 0, 'forgotten', 0, 'lost', 0, 'users', 0)
    if tonumber(ttl) > 0 then expire(key, now_ms() + EXPIRY * ttl) end
  end

  function filter.describe(key)
    local kind = call('TYPE', key).ok
    if kind == 'none' then return nil end
    local v = kind == 'hash' and call('HMGET', key, 'id', 'secret', 'parameters') or {}
    if not v[1] then return nil, kind end
    return v[1], v[2], v[3]
  end

  function filter.allocate(f)
    if #f.layers > 0 then return 0 end
    return prepare(f, next_layer(f, true), 1)
  end

  function filter.delete(key)
    if filter.describe(key) then
      local f = filter.open(key)
      for _, layers in ipairs({f.ended, f.layers}) do
        for _, layer in ipairs(layers) do
          for shard = 0, shards_of(layer) - 1 do call('UNLINK', layer.prefix .. shard) end
        end
      end
      for shard = 0, call('HGET', key, 'ready') - 1 do call('UNLINK', f.prefix .. f.last + 1 .. ':' .. shard) end
    end
    call('UNLINK', key)
  end

  function filter.add_user(key, user)
    if call('HEXISTS', key, 'id') == 1 and call('HSET', key, 'user:' .. user, 1) == 1 then
      call('HINCRBY', key, 'users', 1)
    end
  end

  function filter.remove_user(key, user)
    if call('HDEL', key, 'user:' .. user) == 1 then call('HINCRBY', key, 'users', -1) end
    return tonumber(call('HGET', key, 'users') or 0) <= 0
  end
end
