-- Renews the registration of worker ARGV[1], if there is one, and returns all workers.
local my = find(ARGV[1])
if my then
  my.beats = next_beat(my.beats)
  record(ARGV[1], my)
end
return reply(my and 'ok' or 'expired', {}, redis.call('HGETALL', KEYS[2]))
