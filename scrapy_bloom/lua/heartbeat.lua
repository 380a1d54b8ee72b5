-- heartbeat WORKER MAX_DEATHS. Keeps a registration alive, and requeues the leases of dead workers. Returns the result of `reap`, or
-- an empty list if there is no such worker: its next sync decides.
if not my then return {} end
call('HDEL', CRAWL, '')
local others = reap(ARGV[2] + 0)
keep(filter.open(FILTER))
save()
return others
