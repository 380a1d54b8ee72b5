-- Create a shard of ARGV[1] bytes, of the epoch ARGV[2], with the flags ARGV[3]. It expires at ARGV[6],
-- in Unix milliseconds, if that is given and the user may run PEXPIREAT. A prepared string of this
-- size, which has epoch 0, becomes the shard. Otherwise a string is allocated, unless ARGV[4] is 0.
-- Another filter's shard is replaced only if its epoch is ARGV[5], or if that is empty.
local contents = kind()
if contents == 'foreign' then return {contents, 0, 0} end
local epoch = contents == 'shard' and number(0, 0) > 1 and number(1, 5)
if epoch == tonumber(ARGV[2]) then return {'present', 0, 0} end
if epoch and epoch > 0 and ARGV[5] ~= '' and epoch ~= tonumber(ARGV[5]) then return {'other', 0, 0} end
local done = {'made', 0, 0}
local is_prepared = epoch == 0 and redis.call('STRLEN', KEYS[1]) == tonumber(ARGV[1])
-- A prepared string expires. A user without PERSIST cannot keep it.
if is_prepared and type(redis.pcall('PERSIST', KEYS[1])) == 'number' then
  redis.call('BITFIELD', KEYS[1], 'SET', 'u8', 0, ARGV[3], 'SET', 'u40', 8, ARGV[2])
elseif ARGV[4] == '0' then
  return {'absent', 0, 0}
else
  done = allocate(tonumber(ARGV[1]), ARGV[3], ARGV[2], tonumber(ARGV[1]))
end
if done[1] == 'made' and ARGV[6] then redis.pcall('PEXPIREAT', KEYS[1], ARGV[6]) end
return done
