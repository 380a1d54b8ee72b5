-- The contents of a key (KEYS[1] by default), and numbers from the header at KEYS[1]. Scripts on shards
-- begin with this one. It reads by GETRANGE: a full server refuses even a BITFIELD that only reads.
local function number(first, last)
  local bytes, n = redis.call('GETRANGE', KEYS[1], first, last), 0
  for i = 1, last - first + 1 do n = n * 256 + (string.byte(bytes, i) or 0) end
  return n
end
local function kind(name)
  local key = name or KEYS[1]
  local t = redis.call('TYPE', key)['ok']
  if t == 'none' then return 'absent' end
  if t ~= 'string' then return 'foreign' end
  local h = redis.call('GETRANGE', key, 0, 7)
  local first = string.byte(h, 1)
  local is_long = redis.call('STRLEN', key) >= 56
  local is_header = string.sub(h, 7) == string.char(0, 0) or (string.byte(h, 7) or 0) >= 128
  if (first == 2 or first == 3) and is_header and is_long then return 'shard' end
  if (first == 0 or first == 1) and not string.find(string.sub(h, 2), '[^%z]') then return 'shard' end
  return 'foreign'
end
