-- join WORKER OPENED ANSWERED LEASE SPIDER QUEUES NEW FLUSH SHARED KNOWN; of the first queue's crawl ID RUN ORIGIN SYNCED, and FORCE,
-- each empty in the first queue; and of a filter to create PARAMETERS ID SECRET TTL SIZES.
-- Registers a worker; its leases wait again. OPENED numbers its joins: one that is repeated gets its reply again. ANSWERED is the
-- record of the worker's last answered call. With FLUSH the script deletes the crawl first, and the filter unless that is SHARED.
-- KNOWN is the id of the filter that the worker knew: if that was lost, the shards that it has left are deleted.
-- A queue of another crawl than the first queue's is emptied: a crawl has ended, or the first queue has lost it. STALE: it is that
-- of a later crawl, so the first queue is to be joined again; FORCE tells that it has been. SYNCED is 1 if a worker has synced in the
-- first queue, and so was in all: then a queue without a crawl has lost it.
-- Returns OK, the crawl's id, run and origin, whether a worker has synced, the id and the secret of the filter, whether its first
-- layer is there, what is kept of all that the worker was told (0: not all calls, 1: all calls, 2: also its leases, which wait again,
-- and the filter), and the news.
local opened, answered, lease, spider, queues, known = ARGV[2], ARGV[3], ARGV[4] + 0, ARGV[5], ARGV[6], ARGV[10]
local is_new, flush, is_shared = ARGV[7] == '1', ARGV[8] == '1', ARGV[9] == '1'
local of_first, run_of_first, origin_of_first, synced, force = unpack(ARGV, 11, 15)
local parameters, id, secret, ttl, sizes = unpack(ARGV, 16, 20)
local run, origin, of_spider, of_filter, stored_queues =
  unpack(call('HMGET', CRAWL, 'run', 'origin', 'spider', 'filter', 'queues'))
local filter_id, filter_secret, stored = filter.describe(FILTER)

local function joined(kept)
  local f, has_synced = filter.open(FILTER), call('PTTL', CRAWL) == -1 and 1 or 0
  return {'OK', crawl.id, run, origin, has_synced, filter_id, filter_secret, #f.layers > 0 and 1 or 0, kept, news(f)}
end

local last = tonumber(match(record or '', '^%d+')) or -1
if last > opened + 0 then return {'LATE'} end
if last == opened + 0 and my and filter_id then return joined(0) end

-- Class paths, of which one may lack leading packages: `scrapy runspider` imports the module of a file alone.
local function is_same(one, other)
  one, other = '.' .. one, '.' .. other
  return sub(one, -#other) == other or sub(other, -#one) == one
end

local others = others_of(ME)
if next(others) and crawl.id then
  if not is_same(of_spider, spider) or of_filter ~= FILTER then return {'FOREIGN', of_spider, of_filter} end
  if #of_spider > #spider then spider = of_spider end
end
if crawl.id and stored_queues ~= queues then return {'QUEUES', stored_queues} end
local is_other = of_first ~= '' and crawl.id and crawl.id ~= of_first
if is_other and crawl.id + 0 > of_first + 0 and force ~= '1' then return {'STALE'} end
local is_used = filter_id and call('HEXISTS', FILTER, 'queue:' .. QUEUE) == 1
local is_flushed = flush
if of_first ~= '' then is_flushed = origin_of_first == 'flush' and (is_other or not crawl.id and (flush or not is_used)) end
local deletes_filter = (is_flushed or is_other) and not is_shared
if not deletes_filter and not filter_id and filter_secret then return {'WRONGTYPE', filter_secret} end
if not deletes_filter and filter_id and stored ~= parameters then return {'MISMATCH', stored} end
if (deletes_filter or not filter_id) and sizes == '' then return {'SIZES'} end

if is_flushed or is_other then
  local left = call('ZCARD', QUEUE)
  for worker in pairs(others_of()) do left = left + held_by(worker) end
  delete_crawl(is_shared)
  if is_flushed then call('DEL', DEAD, FAILED, DEATHS) end
  crawl, record, my, others = {losses = 0, lost = 0}, nil, nil, {}
  filter_id, filter_secret = filter.describe(FILTER)
  if left > 0 and not is_flushed then note_loss(left) end
elseif not crawl.id and (is_used or synced == '1') and (not (my or next(others)) or is_new and call('ZCARD', QUEUE) == 0) then
  note_loss(0) -- the end of a crawl removes the filter's field
end
local ending, dead = match(record or '', '^(%l+) (.*)')
local kept = step(dead or record, answered) and 1 or 0
if kept == 1 and filter_id == known and (ending == 'dead' or my and my.held == held_by(ME)) then kept = 2 end
if filter_id then
  call('HDEL', CRAWL, '') -- for a full server
else
  filter_id, filter_secret = id, secret
  filter.create(FILTER, id, secret, parameters, sizes, ttl)
  if ttl == '0' then call('PEXPIRE', FILTER, HOUR) end -- the first sync makes it last
end
if known ~= '' and known ~= filter_id then filter.sweep(FILTER, known, call('HGET', FILTER, 'sizes')) end

-- The hash of the workers may be lost alone: their leases wait again. The dead ones may wake up while a worker runs.
for _, field in ipairs(call('HKEYS', CRAWL)) do
  local worker = match(field, '^@(.+)')
  if worker and worker ~= ME and not others[worker] and not (next(others) and match(call('HGET', CRAWL, field), '^%l')) then
    depart(worker)
    call('HDEL', CRAWL, field)
  end
end
depart(ME)
if is_new then
  -- Dead letters that no worker died with could not be read; perhaps this worker can.
  local dead = entries_of(DEAD)
  for i = 1, #dead, 2 do
    if call('HEXISTS', DEATHS, dead[i + 1]) == 0 then
      call('ZADD', QUEUE, dead[i], dead[i + 1])
      call('ZREM', DEAD, dead[i + 1])
    end
  end
end

local is_first = not crawl.id
if of_first ~= '' then crawl.id, run, origin = of_first, run_of_first, origin_of_first
else
  if is_first then crawl.id, origin = format('%d', NOW), flush and 'flush' or 'new' end
  if is_first or is_new and not next(others) then run = format('%d', NOW) end
end
record = opened .. ' 0 '
my = {held = 0, idle = 0, synced = is_new and 0 or NOW, lease = lease, back = my and my.back or is_new and 0 or NOW}
save('id', crawl.id, 'run', run, 'origin', origin, 'spider', spider, 'filter', FILTER, 'queues', queues, 'losses', crawl.losses,
  'lost', crawl.lost, '@' .. ME, record)
if is_first then
  call('PEXPIRE', CRAWL, HOUR)
  call('PEXPIRE', WORKERS, HOUR)
end
return joined(kept)
