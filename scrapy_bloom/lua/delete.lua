-- KEYS: the filter; to delete the queue, too, all keys of its scripts. ARGV: the id of the filter, or '' to keep it; of the
-- queue its type, the id of its crawl or '', and its workers. Deletes both, unless one of them is another by now. Returns 1,
-- or 0 if nothing was deleted.
local filter = load_filter()
local FILTER, QUEUE, CRAWL, DEPARTED, DEAD, FAILED, DELIVERIES, SUSPECTS = unpack(KEYS)
if ARGV[1] ~= '' and filter.describe(FILTER) ~= ARGV[1] then return 0 end
if QUEUE then
  local stem, known, workers, alive = string.sub(CRAWL, 1, -6), {}, {}, false
  for i = 4, #ARGV do known[ARGV[i]] = true end
  for _, hash in ipairs({CRAWL, DEPARTED}) do
    for _, field in ipairs(call('HKEYS', hash)) do
      local worker = string.match(field, '^@(.+)')
      if worker then workers[#workers + 1] = worker end
      if worker and hash == CRAWL then
        alive = true
        if not known[worker] then return 0 end
      end
    end
  end
  local type, partitions = call('TYPE', QUEUE).ok, call('HGET', CRAWL, 'partitions')
  if type ~= 'none' and type ~= ARGV[2] or (call('HGET', CRAWL, 'id') or ARGV[3]) ~= ARGV[3] then return 0 end
  for _, worker in ipairs(workers) do call('DEL', stem .. 'leases:' .. worker, stem .. 'taken:' .. worker) end
  call('UNLINK', QUEUE, CRAWL, DEPARTED, DEAD, FAILED, DELIVERIES, SUSPECTS)
  if alive then
    -- Workers that are left learn that the queue was not lost.
    local time = call('TIME')
    local now = string.format('%.0f', time[1] * 1000000 + time[2])
    call('HSET', CRAWL, 'id', now, 'run', now, 'origin', 'flush', 'partitions', partitions or 1, 'losses', 0, 'lost', 0)
    call('PEXPIRE', CRAWL, 3600000)
  end
end
if ARGV[1] ~= '' then filter.delete(FILTER)
elseif QUEUE and filter.describe(FILTER) then call('HDEL', FILTER, 'queue:' .. QUEUE) end -- or the next worker misses its crawl
return 1
