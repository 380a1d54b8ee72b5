-- prepare WORKER FILTER. Allocates a shard of the filter's first layer; shards do not expire, so the filter lasts from now on.
-- Returns how many are missing.
local f = filter.open(FILTER, ARGV[2])
if not f then return 0 end
local missing = filter.allocate(f)
if f.ttl == 0 then call('PERSIST', FILTER) end
return missing
