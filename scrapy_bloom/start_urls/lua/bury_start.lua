-- Move the leased fields ARGV[1..n] that still exist to the list of dead letters, KEYS[3].
for i = 1, #ARGV do
  local _, datum = take_out(ARGV[i])
  if datum then redis.call('RPUSH', KEYS[3], datum) end
end
return {'ok'}
