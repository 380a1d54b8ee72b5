-- Executes sync ARGV[2] of worker ARGV[1], which takes up to ARGV[3] entries. Entries follow from
-- ARGV[10] on: ARGV[4] to lease, ARGV[5] to push and ARGV[7] dead letters. The leases of the first
-- ARGV[6] pushes end. Then members follow: ARGV[8] to acknowledge and ARGV[9] to start.
--
-- The order of the writes matters on a full server: the first ZADD refuses a sync with new entries
-- as a whole, and a sync without new entries passes.
local my = find(ARGV[1])
local number = tonumber(ARGV[2])
if not my or my.closing ~= '' or number > my.number + 1 then return {'expired'} end
if number == my.number then return reply('again', entries_of(KEYS[4], 0, -1), false) end
if number < my.number then return {'late'} end

local position = 10
local function following(count, step)
  local part = {}
  for i = 1, count * step do part[i] = ARGV[position + i - 1] end
  position = position + count * step
  return part
end
put(KEYS[4], following(tonumber(ARGV[4]), 2))
local pushed = following(tonumber(ARGV[5]), 2)
put(KEYS[1], pushed)
local unreadable = following(tonumber(ARGV[7]), 2)
put(KEYS[3], unreadable)
local finished = following(tonumber(ARGV[8]), 1)
for _, member in ipairs(following(tonumber(ARGV[9]), 1)) do
  local count = deliveries_of(member)
  if count > 0 then write(KEYS[6], member, count .. ' ' .. ARGV[1]) end
end
if #finished + #unreadable > 0 and redis.call('HLEN', KEYS[6]) > 0 then
  -- A request that another worker has started since keeps its count: that worker runs a copy.
  for _, member in ipairs(finished) do
    local count, starter = deliveries_of(member)
    if starter == ARGV[1] then
      redis.call('HDEL', KEYS[6], member)
      redis.call('ZREM', KEYS[3], member)
    end
  end
  for i = 2, #unreadable, 2 do redis.call('HDEL', KEYS[6], unreadable[i]) end
end
for i = 1, tonumber(ARGV[6]) do finished[#finished + 1] = pushed[2 * i] end
take_out(KEYS[4], finished)

-- Members that this worker has leased stay in the queue: equal requests are one member, with one
-- lease per worker. A worker takes no more than its share of the queue; one share is left for a
-- worker that joins.
local want = tonumber(ARGV[3])
local taken, skipped = {}, {}
if want > 0 then
  local share = math.floor(redis.call('ZCARD', KEYS[1]) / (redis.call('HLEN', KEYS[2]) + 1))
  local most = math.min(want, math.max(1, share))
  repeat
    local found = redis.call('ZPOPMIN', KEYS[1], most)
    for i = 1, #found, 2 do
      local list = redis.call('ZSCORE', KEYS[4], found[i]) and skipped or taken
      list[#list + 1], list[#list + 2] = found[i + 1], found[i]
    end
  until #taken > 0 or #found == 0
  put(KEYS[1], skipped)
  put(KEYS[4], taken)
  -- If this worker has started and returned a request before, deaths do not count until it is
  -- started again.
  if redis.call('HLEN', KEYS[6]) > 0 then
    for i = 2, #taken, 2 do
      local count, starter = deliveries_of(taken[i])
      if starter == ARGV[1] then write(KEYS[6], taken[i], count) end
    end
  end
end
my.number, my.void = number, ''
record(ARGV[1], my)
local rest = note_waiting()
if want == 0 or #taken > 0 then return reply('ok', taken, false) end

local workers = redis.call('HGETALL', KEYS[2])
local leases = string.sub(KEYS[4], 1, #KEYS[4] - #ARGV[1])
local leased = 0
for i = 1, #workers, 2 do leased = leased + redis.call('ZCARD', leases .. workers[i]) end
return reply('ok', taken, workers, rest, leased, redis.call('ZCARD', KEYS[3]))
