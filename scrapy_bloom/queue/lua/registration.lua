-- What every script of a queue begins with. KEYS[1] is the queue, KEYS[2] the hash of its workers, KEYS[3] the sorted
-- set of its dead letters, KEYS[4] the sorted set of what the calling worker has leased.

-- Returns a worker's registration, or nil.
local function find(worker)
  local text = redis.call('HGET', KEYS[2], worker)
  if not text then return nil end
  local lease, number, void, beats, closing = string.match(text, '^(%S+) (%d+)(v?) (%d+)(.*)$')
  return {lease = lease, number = tonumber(number), void = void, beats = tonumber(beats), closing = closing}
end

-- Returns a number of beats that is larger than the one before, and the server's Unix time in milliseconds or more.
local function next_beat(before)
  local time = redis.call('TIME')
  return math.max(before + 1, time[1] * 1000 + math.floor(time[2] / 1000))
end

-- Writes it. A full server refuses an HSET that is the first write of a script, but not one after an HDEL.
local function record(worker, my)
  redis.call('HDEL', KEYS[2], '')
  local text = string.format('%s %.0f%s %.0f%s', my.lease, my.number, my.void, my.beats, my.closing)
  redis.call('HSET', KEYS[2], worker, text)
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
