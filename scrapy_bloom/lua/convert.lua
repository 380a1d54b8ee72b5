-- KEYS: a queue, the rest of it that is to be moved, and a key that does not exist. ARGV: the type to give the queue, zset or list; fifo
-- or lifo; and how many requests to move at most. scrapy-redis pushes at the head of a list, and pops at the head (lifo) or the tail.
-- Returns how many are left to move. A conversion that was interrupted is continued, also in the other direction.
local call = redis.call
local queue, rest, free = unpack(KEYS)
local kind, is_fifo, most = ARGV[1], ARGV[2] == 'fifo', ARGV[3] + 0
local other = kind == 'zset' and 'list' or 'zset'
local function is(key, type) return call('TYPE', key).ok == type end

if is(queue, other) and not is(rest, other) then
  if is(rest, kind) then call('RENAME', rest, free) end
  call('RENAME', queue, rest)
  if is(free, kind) then call('RENAME', free, queue) end
elseif is(rest, kind) and is(queue, 'none') then
  call('RENAME', rest, queue)
end
if not is(rest, other) then return 0 end

if kind == 'zset' then
  -- Those that a pop would reach last, each before all that were moved: a lower score.
  local first = call('ZRANGEBYSCORE', queue, '(-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local score = math.min(0, first[2] or 0)
  local last = is_fifo and call('LRANGE', rest, 0, most - 1) or call('LRANGE', rest, -most, -1)
  for i = 1, #last do
    score = score - 1
    call('ZADD', queue, 'NX', string.format('%.17g', score), last[is_fifo and i or #last + 1 - i])
  end
  if is_fifo then call('LTRIM', rest, most, -1) else call('LTRIM', rest, 0, -most - 1) end
  return call('LLEN', rest)
end
local members = call('ZRANGEBYSCORE', rest, '(-inf', '+inf', 'LIMIT', 0, most) -- start data stay behind
for _, member in ipairs(members) do
  call(is_fifo and 'LPUSH' or 'RPUSH', queue, member)
  call('ZREM', rest, member)
end
return call('ZCOUNT', rest, '(-inf', '+inf')
