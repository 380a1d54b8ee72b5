-- Sets in the shard KEYS[1], of the epoch ARGV[1], all bits that are set in the shard KEYS[2], of the epoch ARGV[2]. Both
-- have ARGV[3] bytes at least. The header of KEYS[1] stays.
local function is(key, epoch)
  if redis.call('TYPE', key)['ok'] ~= 'string' then return false end
  local header, n = redis.call('GETRANGE', key, 0, 7), 0
  for i = 2, 6 do n = n * 256 + (string.byte(header, i) or 0) end
  local first = string.byte(header, 1)
  return (first == 2 or first == 3) and n == tonumber(epoch) and redis.call('STRLEN', key) >= tonumber(ARGV[3])
end
if not is(KEYS[1], ARGV[1]) then return 'target' end
if not is(KEYS[2], ARGV[2]) then return 'source' end
local header = redis.call('GETRANGE', KEYS[1], 0, 7)
redis.call('BITOP', 'OR', KEYS[1], KEYS[1], KEYS[2])
redis.call('SETRANGE', KEYS[1], 0, header)
return 'merged'
