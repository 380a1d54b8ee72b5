-- leave WORKER CRAWL MODE MAX_DELIVERIES IS_SHARED DELETE. Ends a registration; the leases wait again. MODE is finished,
-- stopped or keep. The last worker deletes the crawl if it is finished and nothing waits or is leased, or if it is stopped,
-- and with it the filter unless that is shared. In a partition but the first, DELETE is 1 if the first was deleted, else 0:
-- there it is decided who is the last. Another one has ''.
-- Returns whether the crawl is deleted, how many requests wait, the number of other workers, and the result of `reap`;
-- or EXPIRED, with the id and the origin of the crawl that is there.
local mode, delete = ARGV[3], ARGV[6]
if ARGV[2] ~= crawl.id or not my and delete ~= '1' then
  return {'EXPIRED', news(), crawl.id or '', call('HGET', CRAWL, 'origin') or ''}
end
local others = false -- not nil, which ends a reply
if my then
  note_missing_leases(ME, my)
  others = reap(tonumber(ARGV[4]))
  depart(ME, my)
  save()
end
local working, held = 0, 0
for _, r in pairs(registrations(CRAWL)) do
  working, held = working + r.works, held + r.held -- a join alone, perhaps a late one, is no worker yet
end
local is_due = delete == '1' or delete == '' and working == 0 and mode ~= 'keep'
if mode == 'finished' then is_due = is_due and crawl.waiting + held == 0 end
local said = news()
if is_due then delete_crawl(ARGV[5] == '1') end
return {'LEFT', said, is_due and 1 or 0, crawl.waiting, working, others}
