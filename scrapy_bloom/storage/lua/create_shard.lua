-- Create a shard of ARGV[1] bytes, of the epoch ARGV[2], with the flags ARGV[3]. It expires at ARGV[4],
-- in Unix milliseconds, if that is given and the user may run PEXPIREAT.
-- Check free memory first: one large allocation would take the server over its limit. A server
-- that denies INFO refuses by itself when it is full.
local contents = kind()
if contents == 'foreign' then return {contents, 0, 0} end
if contents == 'shard' and number(0, 0) > 1 and number(1, 5) == tonumber(ARGV[2]) then return {'present', 0, 0} end
local memory = redis.pcall('INFO', 'memory')
if type(memory) == 'string' then
  local limit = tonumber(string.match(memory, 'maxmemory:(%d+)') or 0)
  local used = tonumber(string.match(memory, 'used_memory:(%d+)') or 0)
  local evicts = string.match(memory, 'maxmemory_policy:allkeys')
  if limit > 0 and not evicts and used + ARGV[1] > limit then return {'full', used, limit} end
end
if contents == 'shard' then redis.call('UNLINK', KEYS[1]) end
-- Writing the far end first makes the allocation exact.
local done = redis.pcall(
  'BITFIELD', KEYS[1], 'SET', 'u8', ARGV[1] * 8 - 8, 0, 'SET', 'u8', 0, ARGV[3], 'SET', 'u40', 8, ARGV[2])
if done['err'] then
  if string.find(done['err'], 'OOM') then return {'full', 0, 0} end
  return done
end
if ARGV[4] then redis.pcall('PEXPIREAT', KEYS[1], ARGV[4]) end
return {'made', 0, 0}
