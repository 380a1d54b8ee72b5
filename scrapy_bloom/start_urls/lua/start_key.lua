-- The head of every script of start URLs. KEYS[1] is the start key, KEYS[2] the hash of leases. A value in the hash is the
-- score (empty but for a sorted set), a space, and the data.

-- Return the type of the start key if it differs from the wanted one. No script writes anything then.
local function another_type(wanted)
  local found = redis.call('TYPE', KEYS[1]).ok
  return found ~= 'none' and found ~= wanted and found
end

-- Remove a field from the hash; return its score and data, or nil if it is gone.
local function take_out(field)
  local value = redis.call('HGET', KEYS[2], field)
  if not value then return nil end
  redis.call('HDEL', KEYS[2], field)
  local space = string.find(value, ' ', 1, true)
  return string.sub(value, 1, space - 1), string.sub(value, space + 1)
end
