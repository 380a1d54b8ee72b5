-- Add items to the set KEYS[1] of forgotten items. ARGV[1] is the sentinel of the filter, whose score is the version.
-- Without it the set was lost, unless ARGV[2] is a version to begin with. ARGV[3], if not empty, is the expiry; a set that
-- an earlier filter has left may have another one. Scores and members follow. Returns the new version; -1 if the set was
-- lost.
local version = redis.call('ZSCORE', KEYS[1], ARGV[1])
if version then version = (version + 1) % 32768
elseif ARGV[2] == '' then return -1
else
  version = tonumber(ARGV[2])
  if ARGV[3] == '' then redis.pcall('PERSIST', KEYS[1]) end
end
redis.call('ZADD', KEYS[1], version, ARGV[1])
for i = 4, #ARGV, 2 do redis.call('ZADD', KEYS[1], 'GT', ARGV[i], ARGV[i + 1]) end
if ARGV[3] ~= '' then keep_until(ARGV[3]) end
return version
