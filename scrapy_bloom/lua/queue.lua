-- The head of every script of a queue, behind block.lua, filter.lua and steps.lua. Each script is atomic.
--
-- KEYS: filter, queue, crawl, workers, dead letters, failed, deaths, and a key that never exists: the node of a slot that is
-- being moved refuses a script with a missing key before its first write. ARGV[1] is the worker.
--
-- crawl       hash: id, run (when the first of its present workers started), origin (`flush` or `new`), spider, filter and
--             queues of its workers; waiting: requests in the queue after the last script; losses, lost: how often requests
--             have vanished, and how many; departures: registrations that ended; and `@<worker>`, the record of its calls, see
--             steps.lua, behind `dead ` if it was presumed so, or `robbed ` if leases were gone then
-- workers     hash: a registration by worker, see `parse`
-- leases:<w>  sorted set: requests that a worker has leased; taken:<w>: those of its last sync, leased as well
-- ended       hash, for an hour: of the last crawl that was finished without a loss the id, and the records of workers that were
--             presumed dead
-- deaths      hash: how many workers have died with a request. Such a *suspect* is leased to a worker that holds no other one
-- failed      hash: `run score fingerprint` of each request that is kept for the next run
-- start data that a worker has popped are members of these sets, before all requests: see `start_entry`
--
-- A request is in one place: in the queue; in taken:<w>, then in leases:<w>; or set aside as dead or failed. It comes back to the
-- queue by a rejoin or a leave of its worker, or by its death, see `reap`. An acknowledgement ends it.
--
-- A registration begins with a join, and ends with a leave, or by `reap` of another worker after a silence of `lease`. Then the
-- record is `dead `, and the next sync of its worker answers REJOIN, as it does if the server has lost the record or the leases.
-- The keys expire until the first sync: a late join leaves nothing behind. `held` and `waiting` count what the last script has
-- left, so that the next one notices a loss.
--
-- Times are Unix times of the server in milliseconds. A full server refuses a script's first write, unless that deletes, and
-- permits all writes behind it. An ACL may deny any command: what adds comes before what deletes.
local filter = load_filter()
local FILTER, QUEUE, CRAWL, WORKERS, DEAD, FAILED, DEATHS = unpack(KEYS)
local STEM, ME, HOUR = sub(CRAWL, 1, -6), ARGV[1], 3600000
local ENDED = STEM .. 'ended'
local time = call('TIME')
local NOW = time[1] * 1000 + math.floor(time[2] / 1000)

-- held: requests in leases:<w> and taken:<w>. idle: 1 if its last sync said that it holds nothing. contact: its last script.
-- synced: its last sync, 0 before the first one. lease: so long after its last contact it is presumed dead. back: when it
-- returned, if it was away for longer.
local function parse(text)
  local held, idle, contact, synced, lease, back = match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  return {held = held + 0, idle = idle + 0, contact = contact + 0, synced = synced + 0, lease = lease + 0, back = back + 0}
end

-- Call a command with many arguments in portions: a Lua call takes about 8,000.
local function in_parts(command, key, arguments)
  for first = 1, #arguments, 1000 do call(command, key, unpack(arguments, first, math.min(first + 999, #arguments))) end
end

-- Scores and members of a sorted set, in turn.
local function entries_of(key)
  local entries = call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #entries, 2 do entries[i], entries[i + 1] = entries[i + 1], entries[i] end
  return entries
end

local function leases_of(worker) return STEM .. 'leases:' .. worker, STEM .. 'taken:' .. worker end
local LEASES, TAKEN = leases_of(ME)

local function held_by(worker)
  local leases, taken = leases_of(worker)
  return call('ZCARD', leases) + call('ZCARD', taken)
end

-- The member of a start datum that was popped from KEY, a list, set or zset; SCORE: its score in a zset. UNIQUE: equal data are two.
local function start_entry(kind, key, datum, score, unique)
  return '\0start ' .. kind .. ' ' .. unique .. ' ' .. score .. ' ' .. #key .. ' ' .. key .. datum
end

-- Give the start data of a sorted set back to their keys, the last ones first: they were popped from the other end.
local function give_back(set)
  local members = call('ZRANGEBYSCORE', set, '-inf', '-inf')
  for i = #members, 1, -1 do
    local kind, score, size, rest = match(members[i], '^%zstart (%S+) %S+ (%S+) (%d+) (.*)$')
    if kind then
      local key, datum = sub(rest, 1, size), sub(rest, size + 1)
      if kind == 'list' then call('LPUSH', key, datum)
      elseif kind == 'set' then call('SADD', key, datum)
      else call('ZADD', key, 'NX', score, datum) end -- if it was added again, it keeps its new score
      call('ZREM', set, members[i])
    end
  end
end

local noted = call('HMGET', CRAWL, 'id', '@' .. ME, 'waiting', 'losses', 'lost')
local crawl = {id = noted[1], losses = (noted[4] or 0) + 0, lost = (noted[5] or 0) + 0}
local record, my = noted[2], call('HGET', WORKERS, ME)
my = my and parse(my)
if my and my.contact + my.lease < NOW then my.back = NOW end

local function note_loss(requests)
  crawl.losses, crawl.lost, crawl.found = crawl.losses + 1, crawl.lost + requests, 1
  call('HDEL', CRAWL, '')
  call('HSET', CRAWL, 'losses', crawl.losses, 'lost', crawl.lost, 'waiting', call('ZCARD', QUEUE))
end

-- Only the scripts take requests: a shorter queue was deleted or evicted, or another client takes requests, too.
local vanished = noted[3] and noted[3] - call('ZCARD', QUEUE) or 0
if vanished > 0 then note_loss(vanished) end

-- Let a filter with a TTL outlive its items: an empty one is not lost. Beats come several times in a lease.
local function keep(f)
  if f and f.ttl > 0 then call('PEXPIREAT', FILTER, format('%d', NOW + 1.5 * f.ttl + my.lease)) end
end

-- Write the registration of this worker and further fields of the crawl. Each script that changes anything ends with it.
local function save(...)
  if my then
    my.contact = NOW
    call('HSET', WORKERS, ME, table.concat({my.held, my.idle, my.contact, my.synced, my.lease, my.back}, ' '))
  end
  crawl.waiting = call('ZCARD', QUEUE)
  call('HSET', CRAWL, 'waiting', crawl.waiting, ...)
end

-- End the registration of a worker, but not its record; its leases wait again. Returns scores and members of these.
local function depart(worker)
  local leases, taken = leases_of(worker)
  local entries = entries_of(leases)
  for _, each in ipairs(entries_of(taken)) do entries[#entries + 1] = each end
  in_parts('ZADD', QUEUE, entries)
  call('DEL', leases, taken)
  if call('HDEL', WORKERS, worker) == 1 then call('HINCRBY', CRAWL, 'departures', 1) end
  return entries
end

-- The registrations of the other workers.
local function others_of(me)
  local all, found = call('HGETALL', WORKERS), {}
  for i = 1, #all, 2 do
    if all[i] ~= me then found[all[i]] = parse(all[i + 1]) end
  end
  return found
end

-- Requeue the leases of workers that are presumed dead. After an outage all seem dead, and get one lease more to come back.
-- Each death counts for all leases; a request that as many workers as MOST have died with becomes a dead letter, 0: none.
-- Returns whether the crawl is quiet: nothing waits, nothing is leased, and each worker was idle when it synced last; the number
-- of other workers, the earliest of their last syncs, now, and the departures; of each dead worker the name, the silence and the
-- number of leases; and the new dead letters.
local function reap(most)
  local is_quiet, number, earliest, dead, buried = my and my.held == 0, 0, NOW, {}, {}
  for worker, r in pairs(others_of(ME)) do
    if r.contact + r.lease < NOW and not (my and NOW < my.back + my.lease) then
      local held, ending = held_by(worker), 'dead '
      if r.held ~= held then
        note_loss(math.max(r.held - held, 0))
        ending = 'robbed '
      end
      local entries = depart(worker)
      local theirs = call('HGET', CRAWL, '@' .. worker)
      -- Its next sync learns why it must join again. If leases were gone, it requeues what it holds.
      if theirs then call('HSET', CRAWL, '@' .. worker, ending .. theirs) end
      dead[#dead + 1], dead[#dead + 2], dead[#dead + 3] = worker, NOW - r.contact, #entries / 2
      for i = 2, most > 0 and #entries or 0, 2 do
        if call('HINCRBY', DEATHS, entries[i], 1) >= most then
          call('ZADD', DEAD, entries[i - 1], entries[i])
          call('ZREM', QUEUE, entries[i])
          buried[#buried + 1] = entries[i]
        end
      end
    else
      number, earliest = number + 1, math.min(earliest, r.synced)
      is_quiet = is_quiet and r.idle == 1 and r.held == 0
    end
  end
  is_quiet = is_quiet and call('ZCARD', QUEUE) == 0
  return {is_quiet and 1 or 0, number, earliest, NOW, (call('HGET', CRAWL, 'departures') or 0) + 0, dead, buried}
end

-- Delete the crawl, and its filter unless that is shared. Failed requests and dead letters stay, and start data return.
local function delete_crawl(is_shared)
  for _, hash in ipairs({CRAWL, WORKERS}) do
    for _, field in ipairs(call('HKEYS', hash)) do
      for _, set in ipairs({leases_of(match(field, '^@?(.*)'))}) do
        give_back(set)
        call('DEL', set)
      end
    end
  end
  give_back(QUEUE)
  call('DEL', QUEUE, CRAWL, WORKERS, STEM .. 'rest')
  -- These show that workers died with a dead letter.
  if call('EXISTS', DEAD) == 0 then call('DEL', DEATHS) end
  if is_shared then call('HDEL', FILTER, 'queue:' .. QUEUE) else filter.delete(FILTER) end
end

-- The part of every reply about the crawl.
local function news(f)
  return {crawl.waiting or call('ZCARD', QUEUE), crawl.losses, crawl.lost, crawl.found or 0, f and f.forgets or 0, f and f.lost or 0}
end
