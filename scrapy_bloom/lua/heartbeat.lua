-- heartbeat WORKER MAX_DELIVERIES. Keeps a registration alive, and requeues the leases of dead workers.
-- Returns the result of `reap`. EXPIRED is a hint only: the next exchange decides.
if not my then return expired() end
local others = reap(tonumber(ARGV[2]))
my.contact = NOW
save('@' .. ME, text_of(my))
return {'OK', news(), others}
