-- clear '' FILTER KIND CRAWL, and the workers. Deletes a queue with all its keys, and the filter of this id, '' to keep it, unless
-- one of them is another by now: KIND is the queue's type, CRAWL the id of its crawl or ''. Returns 1, or 0 if nothing was deleted.
local known, alive, type = {}, false, call('TYPE', QUEUE).ok
for i = 5, #ARGV do known[ARGV[i]] = true end
for worker in pairs(others_of()) do
  alive = true
  if not known[worker] then return 0 end
end
if ARGV[2] ~= '' and filter.describe(FILTER) ~= ARGV[2] then return 0 end
if type ~= 'none' and type ~= ARGV[3] or (crawl.id or ARGV[4]) ~= ARGV[4] then return 0 end
local queues = call('HGET', CRAWL, 'queues')
if type == 'list' then call('DEL', QUEUE) end
delete_crawl(ARGV[2] == '')
call('UNLINK', DEAD, FAILED, DEATHS, ENDED)
if alive then -- they learn that the queue was not lost
  local now = format('%d', NOW)
  call('HSET', CRAWL, 'id', now, 'run', now, 'origin', 'flush', 'queues', queues or 1, 'losses', 0, 'lost', 0)
  call('PEXPIRE', CRAWL, HOUR)
end
return 1
