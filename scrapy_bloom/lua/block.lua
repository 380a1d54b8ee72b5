-- The bits of an item in the blocks of a layer, for any script that checks items.
--
-- An item is 69 bytes, as good as random. Bytes 1 to 5 choose a block of 256 bytes, as a fraction of the layer. A block has
-- `hashes` partitions (8, 16 or 32), and an item has one bit in each: the first partition's byte is byte 6, modulo the bytes of
-- a partition, and its bit is byte 38, a power of two; the second one's are bytes 7 and 39; and so on.
local call, byte, sub, char, format, match = redis.call, string.byte, string.sub, string.char, string.format, string.match
local BLOCK = 256

-- The beginning of the names of a filter's shards.
local function prefix_of(key, id) return (match(key, '^[^{]*{[^}]+}') and key or '{' .. key .. '}') .. ':' .. id .. ':' end

-- An item's block in a layer, shorter if the shard is lost; the shard's key, and the block's place there as a text: older
-- servers take longer to print a number than `format` does.
local function read_block(item, prefix, blocks, span)
  local a, b, c, d, e = byte(item, 1, 5)
  local block = ((((e / 256 + d) / 256 + c) / 256 + b) / 256 + a) / 256 * blocks
  block = block - block % 1
  local place = block % span
  local name, first = prefix .. format('%d', (block - place) / span), place * BLOCK
  local from = format('%d', first)
  return call('GETRANGE', name, from, format('%d', first + BLOCK - 1)), name, from
end

-- Whether a block has all bits of an item. Four partitions a turn take three quarters of the time of one.
local function has_bits(block, item, hashes)
  local at, width = 1, BLOCK / hashes
  for i = 6, 5 + hashes, 4 do
    local a, b, c, d = byte(item, i, i + 3)
    local k, l, m, n = byte(item, i + 32, i + 35)
    if byte(block, at + a % width) % (k + k) < k then return false end
    at = at + width
    if byte(block, at + b % width) % (l + l) < l then return false end
    at = at + width
    if byte(block, at + c % width) % (m + m) < m then return false end
    at = at + width
    if byte(block, at + d % width) % (n + n) < n then return false end
    at = at + width
  end
  return true
end

-- A block with all bits of an item.
local function with_bits(block, item, hashes)
  local at, width, result, rest = 1, BLOCK / hashes, '', 1
  for i = 6, 5 + hashes, 4 do
    local w, x, y, z = byte(item, i, i + 3)
    local k, l, m, n = byte(item, i + 32, i + 35)
    w, x, y, z = at + w % width, at + width + x % width, at + 2 * width + y % width, at + 3 * width + z % width
    local a, b, c, d = byte(block, w), byte(block, x), byte(block, y), byte(block, z)
    if a % (k + k) < k then a = a + k end
    if b % (l + l) < l then b = b + l end
    if c % (m + m) < m then c = c + m end
    if d % (n + n) < n then d = d + n end
    result = result .. sub(block, rest, w - 1) .. char(a) .. sub(block, w + 1, x - 1) .. char(b) .. sub(block, x + 1, y - 1)
      .. char(c) .. sub(block, y + 1, z - 1) .. char(d)
    at, rest = at + 4 * width, z + 1
  end
  return result .. sub(block, rest)
end
