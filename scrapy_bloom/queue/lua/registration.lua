-- The head of every script of a queue. KEYS[1] is the queue, KEYS[2] the hash of workers, KEYS[3]
-- the sorted set of dead letters, KEYS[4] the sorted set of the calling worker's leases, KEYS[5]
-- the audit, KEYS[6] the hash of deliveries.
--
-- Deliveries: for each request that workers have died with, the number of deaths, and then the
-- worker that has started the request since, if any. Without a start only the first death counts:
-- the request may have waited behind another.
--
-- Audit: `waiting` is the number of requests in the queue after the last script that changed it.
-- `lost` is the number of requests that have vanished with the queue. `loss` is the time of the
-- last loss, which identifies it. `shared` is set if scrapy-redis's scheduler takes requests from
-- the queue, too.

-- Parses a registration. ` closing flush` is the mark of a worker that has deleted the queue, and
-- has the filter still to delete.
local function parse(text)
  local lease, number, void, beats, rest = string.match(text, '^(%S+) (%d+)(v?) (%d+)(.*)$')
  return {
    lease = lease, number = tonumber(number), void = void, beats = tonumber(beats),
    closing = string.match(rest, ' closing flush') or string.match(rest, ' closing') or '',
    spider = string.match(rest, ' @%S+') or '',
  }
end

-- Returns a worker's registration, or nil.
local function find(worker)
  local text = redis.call('HGET', KEYS[2], worker)
  return text and parse(text) or nil
end

-- Returns the server's Unix time in milliseconds, or the number after `before` if that is larger.
local function next_beat(before)
  local time = redis.call('TIME')
  return math.max(before + 1, time[1] * 1000 + math.floor(time[2] / 1000))
end

-- Writes a hash. A full server refuses an HSET that is the first write of a script, but not one
-- after an HDEL.
local function write(key, ...)
  redis.call('HDEL', key, '')
  redis.call('HSET', key, ...)
end

-- Writes the registration of a worker.
local function record(worker, my)
  local text = string.format('%s %.0f%s %.0f%s%s', my.lease, my.number, my.void, my.beats, my.closing, my.spider)
  write(KEYS[2], worker, text)
end

-- Adds scores and members to a sorted set, in portions: a Lua call takes about 8,000 arguments.
local function put(key, entries)
  for first = 1, #entries, 1000 do
    redis.call('ZADD', key, unpack(entries, first, math.min(first + 999, #entries)))
  end
end

-- Removes members from a sorted set. After a removal, a full server lets the script add them
-- elsewhere.
local function take_out(key, members)
  for first = 1, #members, 1000 do
    redis.call('ZREM', key, unpack(members, first, math.min(first + 999, #members)))
  end
end

-- Returns scores and members of a sorted set, in turn.
local function entries_of(key, first, last)
  local entries = redis.call('ZRANGE', key, first, last, 'WITHSCORES')
  for i = 1, #entries, 2 do entries[i], entries[i + 1] = entries[i + 1], entries[i] end
  return entries
end

-- Moves a sorted set to the queue. The deletion comes first, for a full server.
local function requeue(key)
  local entries = entries_of(key, 0, -1)
  redis.call('DEL', key)
  put(KEYS[1], entries)
end

-- Returns the number of workers that have died with a request, and the worker that has started it
-- since, or ''.
local function deliveries_of(member)
  local text = redis.call('HGET', KEYS[6], member)
  if not text then return 0, '' end
  local count, starter = string.match(text, '^(%d+) ?(.*)$')
  return tonumber(count), starter
end

-- Returns the entries' members that workers have died with and the numbers of these deaths, in
-- turn.
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

-- Records the loss of a number of requests.
local function record_loss(number)
  audit.loss, audit.lost = next_beat(audit.loss), audit.lost + number
  write(KEYS[5], 'loss', string.format('%.0f', audit.loss), 'lost', audit.lost)
end

-- Records the number of waiting requests after a script has changed it, and returns it.
local function note_waiting()
  local waiting = redis.call('ZCARD', KEYS[1])
  if waiting ~= audit.waiting then
    audit.waiting = waiting
    if waiting > 0 then write(KEYS[5], 'waiting', waiting) else redis.call('HDEL', KEYS[5], 'waiting') end
  end
  return waiting
end

-- Returns a reply: the status, entries, the workers or false, the numbers, and the suspects among
-- the entries.
local function reply(status, entries, workers, waiting, leased, dead, requeued)
  local numbers = {waiting or 0, leased or 0, dead or 0, audit.loss, audit.lost, requeued}
  return {status, entries, workers, numbers, suspects_in(entries)}
end

-- A queue that vanished although requests waited was deleted or evicted. A queue that is only
-- shorter is shared with scrapy-redis's scheduler, which takes requests one by one, and may empty
-- the queue between two scripts.
local before = audit.waiting
local waiting = note_waiting()
if waiting < before and not audit.shared then
  if waiting > 0 then write(KEYS[5], 'shared', 1) else record_loss(before) end
end
