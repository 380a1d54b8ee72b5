-- join WORKER NUMBER STAMP LEASE SPIDER IS_NEW FLUSH KNOWN, and of a filter to create: PARAMETERS ID SECRET TTL SIZES.
-- Registers a worker; only its first exchange makes it one that others wait for. STAMP is that of its last answered call:
-- what a later one took, without a reply, waits again. With FLUSH the script deletes the crawl and the filter first.
-- KNOWN is the id of the filter that the worker knew: if that was lost, the shards that it has left are deleted.
-- Returns the crawl's id, run and origin, the filter's id and secret, the stamp, and what it has replaced: see FIELDS.
local number, stamp, lease, spider = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local is_new, flush = ARGV[6] == '1', ARGV[7] == '1'
local known, parameters, id, secret, ttl, sizes = unpack(ARGV, 8, 13)

local function joined()
  local id, secret = filter.describe(FILTER)
  local of = call('HMGET', CRAWL, 'id', 'run', 'origin')
  return {'OK', news(), of[1], of[2], of[3], id, secret, my.stamp, my.replaced, my.marked, my.known}
end

local departed = not my and call('HGET', DEPARTED, '@' .. ME)
local before = my or departed and parse(departed)
if before and number <= before.join then
  local is_repeated = my and number == my.join and my.works == 0 and crawl.id and filter.describe(FILTER)
  return is_repeated and joined() or {'LATE', news()}
end

local others = 0
for worker in pairs(workers()) do others = others + (worker == ME and 0 or 1) end
local of = call('HMGET', CRAWL, 'spider', 'filter')
if others > 0 and (of[1] ~= spider or of[2] ~= FILTER) then return {'FOREIGN', of[1], of[2]} end
local kept, kind_or_secret, stored = filter.describe(FILTER)
if not kept and kind_or_secret and not flush then return {'WRONGTYPE', kind_or_secret} end
if kept and not flush and stored ~= parameters then return {'MISMATCH', stored} end
local creates = flush or not kept
if creates and sizes == '' then return {'SIZES'} end

if flush then
  filter.delete(FILTER)
  delete_crawl()
  call('DEL', DEAD, FAILED, DELIVERIES)
  crawl, others = {waiting = 0, losses = 0, lost = 0}, 0
end
if creates then
  filter.create(FILTER, id, secret, parameters, sizes, ttl)
  -- A join that arrives late, after the end of its crawl, leaves nothing for ever: the first exchange makes this last.
  if ttl == '0' then call('PEXPIRE', FILTER, lease / 1000) end
end
if known ~= '' and known ~= filter.describe(FILTER) then filter.sweep(FILTER, known, call('HGET', FILTER, 'sizes')) end
if not crawl.id then
  crawl.id = string.format('%.0f', NOW)
  write(CRAWL, 'id', crawl.id, 'run', crawl.id, 'origin', flush and 'flush' or 'new', 'losses', 0, 'lost', 0)
  call('PEXPIRE', CRAWL, lease / 1000)
end
if is_new then
  if others == 0 then write(CRAWL, 'run', string.format('%.0f', NOW)) end
  -- Dead letters that no worker died with could not be read; perhaps this worker can.
  local dead, back = entries_of(DEAD), {}
  for i = 1, #dead, 2 do
    if call('HEXISTS', DELIVERIES, dead[i + 1]) == 0 then back[#back + 1], back[#back + 2] = dead[i], dead[i + 1] end
  end
  for i = 2, #back, 2 do call('ZREM', DEAD, back[i]) end
  in_parts('ZADD', QUEUE, back)
end
call('HDEL', DEPARTED, '@' .. ME)
local LEASES, TAKEN = STEM .. 'leases:' .. ME, STEM .. 'taken:' .. ME
if before and stamp == before.prior then move(TAKEN, QUEUE) end
local took = call('ZCARD', TAKEN)
my = {join = number, held = call('ZCARD', LEASES) + took, took = took, busy = 1, works = 0, suspect = 0, contact = NOW,
      lease = lease, stamp = NOW, prior = NOW, replaced = before and (departed and 2 or 1) or 0,
      marked = before and before.stamp or 0, known = before and before.prior or 0}
save('@' .. ME, text_of(my), 'spider', spider, 'filter', FILTER)
return joined()
