-- The calls of a filter's caller, each executed once, behind steps.lua.
-- KEYS: the filter; for a caller that cannot notice that the server went back, a key that never exists: the node of a slot that is
-- being moved refuses the script before its first write. ARGV: the state of the filter and the record that the caller knows, the
-- record's field, its next record without the flags, the items.
-- A record has the time of the opening, and the number and the flags of the last call that changed anything, see steps.lua.
-- Returns the flags, or if the caller's news are old the record and `news`; an empty list if the server has lost data, and the
-- caller is to open the filter again.
local FIRST = 5

-- The state of a filter, and for one with a TTL the ms until its oldest layer ends.
local function news(f)
  local oldest = f.ttl > 0 and f.layers[1]
  return call('HGET', f.key, 'state'), oldest and math.floor(oldest.created + 1.25 * f.ttl - f.now) or 0
end

local function numbered(filter, ask, flags)
  local f = filter.open(KEYS[1], match(ARGV[1], '^%x*'))
  local record = f and call('HGET', KEYS[1], ARGV[3])
  local fate = step(record, ARGV[2])
  if not fate then return {} end
  if fate == 'next' then
    for i = FIRST + #flags, #ARGV do flags = flags .. (ask(f, ARGV[i]) and '1' or '0') end
    filter.save(f)
    record = ARGV[4] .. flags
    call('HSET', KEYS[1], ARGV[3], record)
  end
  return {record, news(f)}
end
