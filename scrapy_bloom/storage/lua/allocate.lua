-- Allocate a string of `size` zero bytes with a header at KEYS[1], if there is `room` for so many bytes.
-- Returns the outcome.
-- Check free memory first: one large allocation would take the server over its limit. A server
-- that denies INFO refuses by itself when it is full.
local function allocate(size, flags, epoch, room)
  local memory = redis.pcall('INFO', 'memory')
  if type(memory) == 'string' then
    local limit = tonumber(string.match(memory, 'maxmemory:(%d+)') or 0)
    local used = tonumber(string.match(memory, 'used_memory:(%d+)') or 0)
    local evicts = string.match(memory, 'maxmemory_policy:allkeys')
    if limit > 0 and not evicts and used + room > limit then return {'full', used, limit} end
  end
  -- Only if there is a string: a server does not refuse a script for lack of memory after its first write.
  if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('UNLINK', KEYS[1]) end
  -- Writing the far end first makes the allocation exact.
  local done = redis.pcall(
    'BITFIELD', KEYS[1], 'SET', 'u8', size * 8 - 8, 0, 'SET', 'u8', 0, flags, 'SET', 'u40', 8, epoch)
  if not done['err'] then return {'made', 0, 0} end
  if string.find(done['err'], 'OOM') then return {'full', 0, 0} end
  return done
end
