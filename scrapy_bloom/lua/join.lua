-- join WORKER NUMBER STAMP LEASE SPIDER IS_NEW FLUSH IS_SHARED KNOWN, and of a filter to create: PARAMETERS ID SECRET TTL
-- SIZES.
-- Then the number of PARTITIONS, and in all but the first the ID, RUN and ORIGIN of its crawl, and FORCE.
-- Registers a worker; others wait for it only after its first exchange. STAMP is that of its last answered call:
-- requests that a later one took, without a reply, wait again. With FLUSH the script deletes the crawl first, and the filter
-- unless IS_SHARED.
-- KNOWN is the id of the filter that the worker knew: if that was lost, the shards that it has left are deleted.
-- A partition may be left behind by a crawl that ended, or was replaced, while a worker was killed. Requests that wait there
-- join the crawl, unless the first partition was flushed: the first worker to join another one continues that. STALE: the
-- partition has a later crawl, so the first one decides again; FORCE tells that it has, since it went back in time.
-- Returns the crawl's id, run and origin, the filter's id and secret, and the stamp. Then, of the registration that it has
-- replaced: the kind, the numbers of offers and returns of its last exchange, and the stamps. See FIELDS. And in several
-- partitions the workers and their reliances, in turn.
local number, stamp, lease, spider = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local is_new, flush, is_shared = ARGV[6] == '1', ARGV[7] == '1', ARGV[8] == '1'
local known, parameters, id, secret, ttl, sizes = unpack(ARGV, 9, 14)
local partitions, of_first, run_of_first, origin_of_first, force = unpack(ARGV, 15, 19)
local run, origin, of_spider, of_filter, stored_partitions =
  unpack(call('HMGET', CRAWL, 'run', 'origin', 'spider', 'filter', 'partitions'))
local filter_id, filter_secret, stored = filter.describe(FILTER)

local function joined()
  local relied = {}
  for _, hash in ipairs(partitions == '1' and {} or {CRAWL, DEPARTED}) do
    for worker, r in pairs(registrations(hash)) do relied[#relied + 1], relied[#relied + 2] = worker, r.relied end
  end
  return {'OK', news(), crawl.id, run, origin, filter_id, filter_secret,
          my.stamp, my.replaced, my.offered, my.returned, my.marked, my.known, relied}
end

local departed = not my and call('HGET', DEPARTED, '@' .. ME)
local NOBODY = {join = 0, works = 0, offered = 0, returned = 0, stamp = 0, prior = 0, since = 0, relied = '-'}
local before = my or departed and parse(departed) or NOBODY
if number <= before.join then
  local is_repeated = my and number == my.join and my.stamp == my.prior and filter_id
  return is_repeated and joined() or {'LATE', news()}
end

local others = math.max(0, call('HLEN', CRAWL) - FIXED - (my and 1 or 0))
if others > 0 and (of_spider ~= spider or of_filter ~= FILTER) then return {'FOREIGN', of_spider, of_filter} end
if crawl.id and stored_partitions ~= partitions then return {'PARTITIONS', stored_partitions} end
local has_other_id = of_first ~= '' and crawl.id and crawl.id ~= of_first
if has_other_id and tonumber(crawl.id) > tonumber(of_first) and force ~= '1' then return {'STALE', news()} end
local is_used = filter_id and call('HEXISTS', FILTER, 'queue:' .. QUEUE) == 1
if of_first ~= '' then -- the waiting requests of this crawl stay
  local is_older = has_other_id and tonumber(crawl.id) < tonumber(of_first)
  flush = origin_of_first == 'flush' and (is_older or not crawl.id and (flush or not is_used))
end
local is_remainder = has_other_id and crawl.waiting == 0
for _, r in pairs(has_other_id and registrations(CRAWL) or {}) do is_remainder = is_remainder and r.held == 0 end
if not (flush and not is_shared) and not filter_id and filter_secret then return {'WRONGTYPE', filter_secret} end
if not (flush and not is_shared) and filter_id and stored ~= parameters then return {'MISMATCH', stored} end
if (flush or is_remainder or not filter_id) and sizes == '' then return {'SIZES'} end

if flush or is_remainder then
  delete_crawl(is_shared)
  crawl, filter_id, filter_secret = {losses = 0, lost = 0, changed = 0}, filter.describe(FILTER)
  if flush then
    call('DEL', DEAD, FAILED, DELIVERIES)
    others, my, departed, before = 0, nil, nil, NOBODY
  end
elseif my and stamp ~= my.stamp then
  note_missing_leases(ME, my) -- otherwise the worker holds them all, and leases them again
elseif is_new and has_other_id or not crawl.id and is_used then
  -- The first partition has lost its crawl. Or this one has lost its own: its end would have removed the filter's field.
  note_loss(0)
end
if not filter_id then
  filter_id, filter_secret = id, secret
  filter.create(FILTER, id, secret, parameters, sizes, ttl)
  -- A join that arrives late, after the end of its crawl, leaves nothing for ever: the first exchange makes this last.
  if ttl == '0' then call('PEXPIRE', FILTER, lease / 1000) end
end
if known ~= '' and known ~= filter_id then filter.sweep(FILTER, known, call('HGET', FILTER, 'sizes')) end
local is_first = not crawl.id
if of_first ~= '' then crawl.id, run, origin = of_first, run_of_first, origin_of_first
elseif is_first then crawl.id, origin = string.format('%.0f', NOW), flush and 'flush' or 'new' end
if of_first == '' and (is_first or is_new and others == 0) then run = string.format('%.0f', NOW) end
if is_new then
  -- Dead letters that no worker died with could not be read; perhaps this worker can.
  local dead, back = entries_of(DEAD), {}
  for i = 1, #dead, 2 do
    if call('HEXISTS', DELIVERIES, dead[i + 1]) == 0 then
      back[#back + 1], back[#back + 2] = dead[i], dead[i + 1]
      call('ZREM', DEAD, dead[i + 1])
    end
  end
  in_parts('ZADD', QUEUE, back)
end
call('HDEL', DEPARTED, '@' .. ME)
local LEASES, TAKEN = STEM .. 'leases:' .. ME, STEM .. 'taken:' .. ME
if stamp == before.prior then move(TAKEN, QUEUE) end
local took = call('ZCARD', TAKEN)
my = {
  join = number, held = call('ZCARD', LEASES) + took, took = took, works = before.works, suspect = 0, contact = NOW,
  busy = my and stamp == my.stamp and my.busy or 1, -- so that a worker that rejoins before its end disturbs no other
  lease = lease, stamp = NOW, prior = NOW, since = departed and NOW or before.since, offered = before.offered,
  returned = before.returned, replaced = my and 1 or departed and 2 or 0, marked = before.stamp, known = before.prior,
  relied = before.relied,
}
save('id', crawl.id, 'run', run, 'origin', origin, 'spider', spider, 'filter', FILTER,
     'partitions', partitions, 'losses', crawl.losses,
     'lost', crawl.lost, '@' .. ME, text_of(my))
if is_first then call('PEXPIRE', CRAWL, lease / 1000) end
return joined()
