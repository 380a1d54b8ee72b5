-- The head of every script of a queue. KEYS[1] is the queue, KEYS[2] the hash of its workers, KEYS[3] the sorted set of
-- its dead letters, KEYS[4] the sorted set of the leases of the calling worker, KEYS[5] the audit of the queue, KEYS[6]
-- the hash of its deliveries.
--
-- The hash of deliveries has each request that was taken from a dead worker. Its value is the number of such deaths, and
-- behind it the worker that has started the request since. Of requests that nobody started only the first death counts:
-- they may have waited behind another.
--
-- The audit is a hash. `waiting` is the number of requests in the queue after the last script that changed it; `lost`
-- the number of requests that have vanished with the queue; `loss` the time of the last loss, by which a worker tells
-- one loss from the next; `shared` is there if somebody else takes requests from the queue.

-- Returns the registration that a text means.
local function parse(text)
  local lease, number, void, beats, rest = string.match(text, '^(%S+) (%d+)(v?) (%d+)(.*)$')
  return {
    lease = lease, number = tonumber(number), void = void, beats = tonumber(beats),
    closing = string.match(rest, ' closing') or '', spider = string.match(rest, ' @%S+') or '',
  }
end

-- Returns a worker's registration, or nil.
local function find(worker)
  local text = redis.call('HGET', KEYS[2], worker)
  return text and parse(text) or nil
end

-- Returns a number that is larger than the one before, and the server's Unix time in milliseconds or more.
local function next_beat(before)
  local time = redis.call('TIME')
  return math.max(before + 1, time[1] * 1000 + math.floor(time[2] / 1000))
end

-- Writes a hash. A full server refuses an HSET that is the first write of a script, but not one after an HDEL.
local function write(key, ...)
  redis.call('HDEL', key, '')
  redis.call('HSET', key, ...)
end

-- Writes the registration of a worker.
local function record(worker, my)
  local text = string.format('%s %.0f%s %.0f%s%s', my.lease, my.number, my.void, my.beats, my.closing, my.spider)
  write(KEYS[2], worker, text)
end

-- Adds scores and members to a sorted set, as many at once as a Lua call can take.
local function put(key, entries)
  for first = 1, #entries, 1000 do
    redis.call('ZADD', key, unpack(entries, first, math.min(first + 999, #entries)))
  end
end

-- Takes members out of a sorted set. After that a full server lets a script put them elsewhere.
local function take_out(key, members)
  for first = 1, #members, 1000 do
    redis.call('ZREM', key, unpack(members, first, math.min(first + 999, #members)))
  end
end

-- Returns the scores and the members of a sorted set.
local function entries_of(key, first, last)
  local entries = redis.call('ZRANGE', key, first, last, 'WITHSCORES')
  for i = 1, #entries, 2 do entries[i], entries[i + 1] = entries[i + 1], entries[i] end
  return entries
end

-- Moves a sorted set to the queue, and returns the number of its members. Deleting it first lets a full server pass.
local function requeue(key)
  local entries = entries_of(key, 0, -1)
  redis.call('DEL', key)
  put(KEYS[1], entries)
  return #entries / 2
end

-- Returns how many workers died with a request, 0 if none did, and the worker that has started it since.
local function deliveries_of(member)
  local text = redis.call('HGET', KEYS[6], member)
  if not text then return 0, '' end
  local count, starter = string.match(text, '^(%d+) ?(.*)$')
  return tonumber(count), starter
end

-- Returns those of some entries that a worker died with, each with the number of such deaths behind it.
local function suspects_in(entries)
  local suspects = {}
  if #entries == 0 or redis.call('HLEN', KEYS[6]) == 0 then return suspects end
  for i = 2, #entries, 2 do
    local count = deliveries_of(entries[i])
    if count > 0 then suspects[#suspects + 1], suspects[#suspects + 2] = entries[i], count end
  end
  return suspects
end

local audit = {waiting = 0, loss = 0, lost = 0}
local noted = redis.call('HGETALL', KEYS[5])
for i = 1, #noted, 2 do audit[noted[i]] = tonumber(noted[i + 1]) end

-- Records that the queue has lost so many requests.
local function record_loss(number)
  audit.loss, audit.lost = next_beat(audit.loss), audit.lost + number
  write(KEYS[5], 'loss', string.format('%.0f', audit.loss), 'lost', audit.lost)
end

-- Notes how many requests wait, at the end of a script that has changed it, and returns the number.
local function note_waiting()
  local waiting = redis.call('ZCARD', KEYS[1])
  if waiting ~= audit.waiting then
    audit.waiting = waiting
    if waiting > 0 then write(KEYS[5], 'waiting', waiting) else redis.call('HDEL', KEYS[5], 'waiting') end
  end
  return waiting
end

-- Returns a reply with entries, the workers or false, and the numbers of requests that wait, are leased and are dead
-- letters. It tells which of the entries are suspects, and how many workers died with each.
local function reply(said, entries, workers, waiting, leased, dead)
  local numbers = {waiting or 0, leased or 0, dead or 0, audit.loss, audit.lost}
  return {said, entries, workers, numbers, suspects_in(entries)}
end

-- A queue that is gone although requests waited was deleted or evicted. One that is only shorter is shared with
-- scrapy-redis's scheduler, which takes requests one by one, and may empty it between two scripts.
local before = audit.waiting
local waiting = note_waiting()
if waiting < before and not audit.shared then
  if waiting > 0 then write(KEYS[5], 'shared', 1) else record_loss(before) end
end
