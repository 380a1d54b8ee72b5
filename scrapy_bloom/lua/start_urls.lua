-- Exchange start URLs with a worker. KEYS: the start key, the hash of leases, the list of dead letters, an absent key as in
-- queue.lua. ARGV: the type of the start key, how many data to lease, the number of the first one, the worker's mark. Then
-- follow the numbers of fields that are done and dead, and the fields that are done, dead and released. A field is a number and a worker's mark,
-- its value the score (empty but for a sorted set), a space and the data.
-- Returns OK, the leased data, how many wait and how many were released; or the type of a key that is of another one.
local START, LEASED, DEAD = unpack(KEYS)
local kind, want, number, worker = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local dead, released = 7 + ARGV[5], 7 + ARGV[5] + ARGV[6]

-- Remove a field, and return its score and data, or nil if it is gone. The deletion comes first, for a full server.
local function take_out(field)
  local value = redis.call('HGET', LEASED, field)
  redis.call('HDEL', LEASED, field)
  if value then return string.match(value, '^(%S*) (.*)$') end
end

for i = 7, dead - 1 do take_out(ARGV[i]) end
for i = dead, released - 1 do
  local _, datum = take_out(ARGV[i])
  if datum then redis.call('RPUSH', DEAD, datum) end
end

local found = redis.call('TYPE', START).ok
if found ~= 'none' and found ~= kind then return {found} end
local moved = 0
-- To the end that is read next: the first field becomes the first again.
for i = #ARGV, released, -1 do
  local score, datum = take_out(ARGV[i])
  if datum then
    moved = moved + 1
    if kind == 'list' then
      redis.call('LPUSH', START, datum)
    elseif kind == 'set' then
      redis.call('SADD', START, datum)
    else -- if it was added again, it keeps its new score
      redis.call('ZADD', START, 'NX', tonumber(score) and score or 0, datum)
    end
  end
end

local data, scores = {}, {}
if want > 0 and kind == 'list' then
  data = redis.call('LRANGE', START, 0, want - 1)
  redis.call('LTRIM', START, want, -1)
elseif want > 0 and kind == 'set' then
  data = redis.call('SPOP', START, want)
elseif want > 0 then
  local entries = redis.call('ZPOPMAX', START, want)
  for i = 1, #entries, 2 do data[#data + 1], scores[#scores + 1] = entries[i], entries[i + 1] end
end
for i, datum in ipairs(data) do
  redis.call('HSET', LEASED, string.format('%.0f', number + i - 1) .. worker, (scores[i] or '') .. ' ' .. datum)
end
return {'OK', data, redis.call(kind == 'list' and 'LLEN' or kind == 'set' and 'SCARD' or 'ZCARD', START), moved}
