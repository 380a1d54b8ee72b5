-- leave WORKER CRAWL MODE MAX_DEATHS SHARED DELETE LOSSES. Ends a registration; the leases wait again. MODE is finished, stopped or
-- keep. The last worker deletes the crawl if it is finished and nothing waits or is leased, or if it is stopped, and with it the
-- filter unless that is SHARED. The first queue decides who is the last: DELETE is empty there, and 1 or 0 in the others. LOSSES
-- are those that the worker knows of, in all queues. With the last registration start data return to their keys.
-- Returns whether the crawl is gone, the number of other workers, the news, and the result of `reap` or false.
local mode, delete = ARGV[3], ARGV[6]
if ARGV[2] ~= crawl.id then return {crawl.id and 0 or 1, 0, news(), false} end
local others = false -- not nil, which ends a reply
call('HDEL', CRAWL, '')
if my then
  others = reap(ARGV[4] + 0)
  if my.held ~= held_by(ME) then note_loss(math.max(my.held - held_by(ME), 0)) end
  depart(ME)
  call('HDEL', CRAWL, '@' .. ME)
  my = nil
end
local working, held = 0, 0
for _, r in pairs(others_of(ME)) do
  -- A join alone, perhaps a late one, is no worker yet.
  working, held = working + (r.synced > 0 and 1 or 0), held + r.held
end
if not next(others_of(ME)) then give_back(QUEUE) end
save()
local said = news()
local is_due = delete == '1' or delete == '' and working == 0 and mode ~= 'keep'
if mode == 'finished' then is_due = is_due and said[1] + held == 0 end
if is_due and mode == 'finished' and crawl.losses + ARGV[7] == 0 then
  -- A worker that was presumed dead, and wakes up later, learns that the server has lost nothing.
  local all, records = call('HGETALL', CRAWL), {'id', crawl.id}
  for i = 1, #all, 2 do
    if sub(all[i], 1, 1) == '@' then records[#records + 1], records[#records + 2] = all[i], all[i + 1] end
  end
  if records[3] then
    call('DEL', ENDED)
    in_parts('HSET', ENDED, records)
    call('PEXPIRE', ENDED, HOUR)
  end
end
if is_due then delete_crawl(ARGV[5] == '1') end
return {is_due and 1 or 0, working, said, others}
