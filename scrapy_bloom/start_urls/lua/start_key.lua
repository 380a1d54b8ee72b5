-- What every script of start URLs begins with. KEYS[1] is the start key, KEYS[2] the hash of the leased ones. A value in
-- it is the score, which is empty but for a sorted set, a space, and the data.

-- Returns the type of the start key, if it is another than the one that is wanted. No script writes anything then.
local function another_type(wanted)
  local found = redis.call('TYPE', KEYS[1]).ok
  return found ~= 'none' and found ~= wanted and found
end

-- Takes a datum out of the hash, and returns its score and its data, or nothing: it is not there any more.
local function take_out(field)
  local value = redis.call('HGET', KEYS[2], field)
  if not value then return nil end
  redis.call('HDEL', KEYS[2], field)
  local space = string.find(value, ' ', 1, true)
  return string.sub(value, 1, space - 1), string.sub(value, space + 1)
end
