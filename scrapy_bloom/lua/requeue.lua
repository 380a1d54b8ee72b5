-- requeue '' FILTER, and of each request a digest or '', and its member. Moves dead letters and failed requests to the
-- queue, and marks those with a digest in the filter of this id. Returns how many; -1 if another filter is there.
local f = ARGV[2] ~= '' and filter.open(FILTER, ARGV[2])
if ARGV[2] ~= '' and not f then return -1 end
local moved = 0
for i = 3, #ARGV, 2 do
  local member = ARGV[i + 1]
  local failed = call('HGET', FAILED, member)
  local score = failed and string.match(failed, '^%S+ (%S+)') or call('ZSCORE', DEAD, member)
  if score then -- it was not moved meanwhile
    if f and ARGV[i] ~= '' then filter.check(f, ARGV[i]) end
    call('ZADD', QUEUE, score, member)
    call('ZREM', DEAD, member)
    call('HDEL', FAILED, member)
    call('HDEL', DEATHS, member)
    moved = moved + 1
  end
end
if f then filter.save(f) end
save()
return moved
