-- The head of every script of a queue, behind the library of the filter. Each script is atomic.
--
-- KEYS: filter, queue, crawl, departed, dead letters, failed, deliveries, suspects, and a key that never exists: the node
-- of a slot that is being moved refuses a script with a missing key before its first write. ARGV[1] is the worker.
--
-- crawl       hash: id, run (time at which the first of its present workers started), origin, spider, filter and
--             partitions of its workers, losses, lost (requests); and `@<worker>`, a registration, see FIELDS. Its field
--             waiting has the requests in the queue after the last script; changed is the time of the last exchange that
--             changed more than contacts.
-- departed    hash: registrations of workers that left, or died; settled: the latest stamp of pruned ones, and of
--             noted losses
-- leases:<w>  sorted set: requests that a worker has leased; taken:<w>: the requests of its last exchange, leased as well
-- deliveries  hash: deaths of each suspect, a request that a dead worker had leased; suspects: the suspect of each worker.
--             The first death counts for all requests of the worker, since it is unknown which it had started. Later ones
--             count only for a suspect that the worker had started, and only these make a dead letter.
-- failed      hash: "run score fingerprint" of each request that is kept for the next run
--
-- Times are Unix times of the server in microseconds.
local filter = load_filter()
local FILTER, QUEUE, CRAWL, DEPARTED, DEAD, FAILED, DELIVERIES, SUSPECTS = unpack(KEYS)
local STEM = string.sub(CRAWL, 1, -6)
local ME = ARGV[1]
local time = call('TIME')
local NOW = time[1] * 1000000 + time[2]

-- join        number of its last join
-- held        requests in leases:<w> and taken:<w>; took: those in taken:<w>
-- busy        0 only if its last exchange said idle, and took nothing; works: it has exchanged
-- suspect     1 if it holds a suspect, 2 if it has started it
-- contact     time of its last script; lease: after which it is presumed dead
-- stamp       time of its last exchange or join, and prior: of the one before, whose reply it has
-- since       time of its return, if it was away for longer than its lease; else 0
-- offered     requests that its last exchange offered; returned: and that it returned
-- replaced    replaced by its join: 0 nothing, 1 a registration, 2 a departed one; with the stamps of that: marked, known
-- relied      its reliance: crawl, and its stamps in all partitions when it acknowledged here last, or -
local FIELDS = {'join', 'held', 'took', 'busy', 'works', 'suspect', 'contact', 'lease', 'stamp', 'prior',
                'since', 'offered', 'returned', 'replaced', 'marked', 'known', 'relied'}
local FIXED = 10 -- fields of the crawl that are no registrations
local FORMAT = string.rep('%.0f ', #FIELDS - 1) .. '%s'

local function parse(text)
  local r, i = {}, 0
  for value in string.gmatch(text, '%S+') do
    i = i + 1
    r[FIELDS[i]] = tonumber(value) or value
  end
  return r
end

local function text_of(r)
  local values = {}
  for i, field in ipairs(FIELDS) do values[i] = r[field] end
  return string.format(FORMAT, unpack(values))
end

-- Write a hash. A full server refuses an HSET that is the first write of a script, but not one after an HDEL.
local function write(key, ...)
  call('HDEL', key, '')
  call('HSET', key, ...)
end

-- Call a command with many arguments in portions: a Lua call takes about 8,000. Return the sum of the replies.
local function in_parts(command, key, arguments)
  local sum = 0
  for first = 1, #arguments, 1000 do
    sum = sum + call(command, key, unpack(arguments, first, math.min(first + 999, #arguments)))
  end
  return sum
end

-- Scores and members of a sorted set, in turn.
local function entries_of(key)
  local entries = call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #entries, 2 do entries[i], entries[i + 1] = entries[i + 1], entries[i] end
  return entries
end

-- Move a sorted set into another one. The HDEL comes first for a full server; then, before anything is deleted, a ZADD
-- that changes nothing, for an ACL that denies it.
local function move(from, to)
  local entries = entries_of(from)
  call('HDEL', CRAWL, '')
  call('ZADD', to, 'XX', 0, '')
  call('DEL', from)
  in_parts('ZADD', to, entries)
end

local noted = call('HMGET', CRAWL, 'id', '@' .. ME, 'waiting', 'losses', 'lost', 'changed')
local my = noted[2] and parse(noted[2])
for i = 3, 6 do noted[i] = tonumber(noted[i] or 0) end
local crawl = {id = noted[1], waiting = call('ZCARD', QUEUE), losses = noted[4], lost = noted[5], changed = noted[6]}
if my and my.contact + my.lease < NOW then my.since = NOW end

local function note_loss(requests)
  crawl.losses, crawl.lost = crawl.losses + 1, crawl.lost + requests
  write(CRAWL, 'losses', crawl.losses, 'lost', crawl.lost)
end

-- Only the scripts take requests: a shorter queue was deleted or evicted, or another client takes requests, too.
if crawl.waiting < noted[3] then
  note_loss(noted[3] - crawl.waiting)
  write(CRAWL, 'waiting', crawl.waiting)
end

-- Write the number of waiting requests, and further fields; each script that changes the queue ends with it.
local function save(...)
  crawl.waiting = call('ZCARD', QUEUE)
  write(CRAWL, 'waiting', crawl.waiting, 'changed', string.format('%.0f', crawl.changed), ...)
end

-- Return how many leases of a worker Redis has lost alone.
local function missing_leases(worker, r)
  local taken = r.took > 0 and call('ZCARD', STEM .. 'taken:' .. worker) or 0
  return r.held - call('ZCARD', STEM .. 'leases:' .. worker) - taken
end

-- Note these, before the registration ends or another one takes its place.
local function note_missing_leases(worker, r)
  local missing = missing_leases(worker, r)
  if missing ~= 0 then note_loss(math.max(missing, 0)) end
end

-- End the registration of a worker; its leases wait again, even if another worker has leased an equal request.
local function depart(worker, r)
  move(STEM .. 'leases:' .. worker, QUEUE)
  move(STEM .. 'taken:' .. worker, QUEUE)
  call('HDEL', SUSPECTS, worker)
  call('HDEL', CRAWL, '@' .. worker)
  r.held, r.took, r.suspect, r.contact = 0, 0, 0, NOW
  write(DEPARTED, '@' .. worker, text_of(r))
end

-- Registrations in a hash by worker, this one's included.
local function registrations(hash)
  local all, found = call('HGETALL', hash), {}
  for i = 1, #all, 2 do
    local worker = string.match(all[i], '^@(.+)')
    if worker then found[worker] = parse(all[i + 1]) end
  end
  return found
end

local DAY = 86400000000

local function settled() return tonumber(call('HGET', DEPARTED, 'settled') or 0) end

local function settle(stamp)
  if stamp > settled() then write(DEPARTED, 'settled', string.format('%.0f', stamp)) end
end

-- Requeue the leases of workers whose lease has ended. After an outage all look dead, and get one lease more to come back.
-- Return whether the crawl is quiet, the number and oldest contact of the other workers, the dead ones, the new dead letters,
-- and the time of the last change. Of each dead worker it returns its name, its silence and its number of requests.
local function reap(max_deliveries)
  local is_quiet, others, oldest, told, buried = true, 0, NOW, {}, {}
  local was_away = NOW < my.since + my.lease
  for worker, r in pairs(registrations(CRAWL)) do
    if worker ~= ME and not was_away and r.contact + r.lease < NOW then
      note_missing_leases(worker, r)
      local leases = {entries_of(STEM .. 'leases:' .. worker), entries_of(STEM .. 'taken:' .. worker)}
      local suspect = r.suspect == 2 and call('HGET', SUSPECTS, worker)
      told[#told + 1], told[#told + 2], told[#told + 3] = worker, NOW - r.contact, #leases[1] / 2 + #leases[2] / 2
      depart(worker, r)
      for _, entries in ipairs(max_deliveries > 0 and leases or {}) do
        for j = 1, #entries, 2 do
          local member = entries[j + 1]
          if call('HEXISTS', DELIVERIES, member) == 0 then
            call('HSET', DELIVERIES, member, 1)
          elseif member == suspect and call('HINCRBY', DELIVERIES, member, 1) >= max_deliveries then
            call('ZREM', QUEUE, member)
            call('ZADD', DEAD, entries[j], member)
            buried[#buried + 1] = member
          end
        end
      end
      -- Late packets of a worker are fenced for a day.
      for old, o in pairs(registrations(DEPARTED)) do
        if o.contact + DAY < NOW then
          settle(o.stamp)
          call('HDEL', DEPARTED, '@' .. old)
        end
      end
    elseif worker ~= ME then
      others, oldest = others + 1, math.min(oldest, r.contact)
      is_quiet = is_quiet and r.busy == 0 and r.held == 0
    end
  end
  is_quiet = is_quiet and my.held == 0 and call('ZCARD', QUEUE) == 0
  return {is_quiet and 1 or 0, others, oldest, told, buried, crawl.changed}
end

-- Delete the crawl, and its filter unless that is shared. Failed requests and dead letters stay.
local function delete_crawl(is_shared)
  for _, hash in ipairs({CRAWL, DEPARTED}) do
    for worker in pairs(registrations(hash)) do call('DEL', STEM .. 'leases:' .. worker, STEM .. 'taken:' .. worker) end
  end
  call('DEL', QUEUE, CRAWL, DEPARTED, SUSPECTS)
  -- These show that workers died with a dead letter.
  if call('EXISTS', DEAD) == 0 then call('DEL', DELIVERIES) end
  if is_shared then call('HDEL', FILTER, 'queue:' .. QUEUE) else filter.delete(FILTER) end
end

-- The part of every reply about the crawl.
local function news(f)
  return {crawl.waiting, crawl.losses, crawl.lost, f and f.forgets or 0, f and f.lost or 0}
end

-- The worker is not registered, or the server has gone back: it must join again.
local function expired() return {'EXPIRED', news()} end
