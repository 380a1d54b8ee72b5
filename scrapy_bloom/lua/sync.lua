-- KEYS: behind those of queue.lua the keys of start data.
-- sync WORKER KNOWN NEXT CRAWL FILTER DONE WANT ROOM MAX_DEATHS SUSPECT STARTS KIND, the counts of five lists, and these: offers,
-- requests to requeue, failed, unreadable and done ones. An entry is the item in the filter (of a failed request its fingerprint) or
-- '', a score and a member. An offer without a member is only marked: its worker runs it. KNOWN and NEXT are records, see steps.lua. DONE
-- is the number of leases that the worker is done with, and cannot acknowledge yet; -1: it holds nothing.
-- WANT requests are taken, of ROOM bytes or one; with SUSPECT one of them may be a suspect. If there is none, as many start data, at
-- most STARTS, of keys of this KIND.
--
-- In this order, so that a refused command leaves no request that is marked and not queued, or acknowledged before its links:
-- 1. Compare. Another crawl or filter, a record that is gone or behind, or leases that are not all there: REJOIN. A record that
--    is ahead: this call or the one before was executed, and gets its reply again.
-- 2. Check and mark the offers, and queue the new ones. What comes back to the queue, failed requests and dead letters follow.
-- 3. The requests of the last reply join the leases, since this call proves that it arrived. Then acknowledge the done ones:
--    their links are queued by now.
-- 4. Take requests, or start data if the queue has none. They are in `taken` until the next sync, for a repeated reply.
-- 5. Write the record, with the flags that a repeated reply needs.
--
-- Returns OK, the record with a flag for each offer (1: new), the requests taken (score, member), the suspect among them or '', the
-- news, the error of a start key or '', and if requests were wanted and none was taken the result of `reap`. Or REJOIN and the
-- reason: the worker must join again.
local known, want, room, most = ARGV[2], ARGV[7] + 0, ARGV[8] + 0, ARGV[9] + 0
local f = filter.open(FILTER, ARGV[5])
local dead = match(record or '', '^%l+ (.*)')
local fate = my and step(record, known)
if ARGV[4] ~= crawl.id then
  local id, last = unpack(call('HMGET', ENDED, 'id', '@' .. ME))
  local is_ended = id == ARGV[4] and step(match(last or '', '%d.*'), known)
  return {'REJOIN', is_ended and 'ended' or crawl.id and call('HGET', CRAWL, 'origin') or 'gone', news(f)}
end
if not fate then return {'REJOIN', dead and step(dead, known) and 'dead' or 'behind', news(f)} end
local leased, took = call('ZCARD', LEASES), call('ZCARD', TAKEN)
if not f or my.held ~= leased + took then return {'REJOIN', f and 'leases' or 'filter', news(f)} end

local has_suspects = call('EXISTS', DEATHS) == 1
local function is_suspect(member) return has_suspects and call('HEXISTS', DEATHS, member) == 1 end

if fate == 'again' then
  local taken, suspect = entries_of(TAKEN), ''
  for i = 2, #taken, 2 do suspect = is_suspect(taken[i]) and taken[i] or suspect end
  return {'OK', record, taken, suspect, news(f), '', false}
end

-- The first places of the five lists, and the end.
local at = {18}
for i = 1, 5 do at[i + 1] = at[i] + 3 * ARGV[12 + i] end

-- Scores and members of a list.
local function entries(list)
  local found = {}
  for i = at[list], at[list + 1] - 1, 3 do found[#found + 1], found[#found + 2] = ARGV[i + 1], ARGV[i + 2] end
  return found
end

-- A full server executes a sync without offers, which frees memory. The ZADD changes nothing: if an ACL denies it, no request is
-- marked that cannot be queued.
if at[2] == at[1] then call('HDEL', CRAWL, '') end
call('ZADD', QUEUE, 'XX', 0, '')
local flags, new = {}, {}
local is_checked, problem = pcall(function()
  for i = at[1], at[2] - 1, 3 do
    local is_new = ARGV[i] == '' or filter.check(f, ARGV[i])
    flags[#flags + 1] = is_new and '1' or '0'
    if is_new and ARGV[i + 2] ~= '' then new[#new + 1], new[#new + 2] = ARGV[i + 1], ARGV[i + 2] end
  end
  -- Perhaps the filter is a new one.
  for i = at[2], at[3] - 1, 3 do
    if ARGV[i] ~= '' then filter.check(f, ARGV[i]) end
  end
  filter.save(f)
end)
-- Marked requests must be queued, also if an ACL denies a command of a filter that grows.
in_parts('ZADD', QUEUE, new)
if not is_checked then error(problem) end

in_parts('ZADD', QUEUE, entries(2))
for i = at[3], at[4] - 1, 3 do
  call('HSET', FAILED, ARGV[i + 2], call('HGET', CRAWL, 'run') .. ' ' .. ARGV[i + 1] .. ' ' .. ARGV[i])
end
in_parts('ZADD', DEAD, entries(4))

-- This call proves that the last reply has arrived.
if took > 0 then
  call('ZUNIONSTORE', LEASES, 2, LEASES, TAKEN, 'AGGREGATE', 'MAX')
  call('DEL', TAKEN)
end
local ended = {}
for i = at[2] + 2, at[6] - 1, 3 do ended[#ended + 1] = ARGV[i] end
in_parts('ZREM', LEASES, ended)
if has_suspects then
  local acknowledged = {}
  for i = at[3] + 2, at[6] - 1, 3 do acknowledged[#acknowledged + 1] = ARGV[i] end
  in_parts('HDEL', DEATHS, acknowledged)
end

-- How many requests this worker may take: it holds no more than its share of all that wait or are leased, rounded up. A worker that
-- has not synced for three seconds takes none.
local function share_of(waiting)
  local held = held_by(ME) - math.max(ARGV[6] + 0, 0)
  if waiting >= call('HLEN', WORKERS) * (held + want) then return want end
  local all, workers = waiting + held, 1
  for _, r in pairs(others_of(ME)) do
    if NOW - r.synced < 3000 then all, workers = all + r.held, workers + 1 end
  end
  return math.min(want, math.ceil(all / workers) - held)
end

-- Take requests from the front of the queue. Equal requests are one member, so none that this worker has leased.
local function take()
  local waiting, taken, members, suspect, bytes, first = call('ZCARD', QUEUE), {}, {}, '', 0, 0
  local share = share_of(waiting)
  local is_kept = waiting > 0 and share <= 0
  while #members < share and first < waiting and bytes < room do
    local found = call('ZRANGE', QUEUE, first, first + share - 1, 'WITHSCORES')
    first = first + share
    for i = 1, #found, 2 do
      local member = found[i]
      local is_one = is_suspect(member)
      if #members < share and (#members == 0 or bytes + #member <= room)
          and not (is_one and (suspect ~= '' or ARGV[10] ~= '1')) and not call('ZSCORE', LEASES, member) then
        if is_one then suspect = member end
        bytes = bytes + #member
        members[#members + 1], taken[#taken + 1], taken[#taken + 2] = member, found[i + 1], member
      end
    end
  end
  in_parts('ZADD', TAKEN, taken)
  in_parts('ZREM', QUEUE, members)
  return taken, suspect, is_kept
end

-- Pop start data into the leases. What one key has given is kept if another one is of another type, or the pop is denied.
local function take_starts()
  local kind, most_starts, taken, bytes, problem = ARGV[12], math.min(want, ARGV[11] + 0), {}, 0, ''
  local pop = kind == 'list' and 'LPOP' or kind == 'set' and 'SPOP' or 'ZPOPMAX'
  for k = 9, #KEYS do
    while #taken / 2 < most_starts and bytes < room do
      local is_read, found = pcall(call, pop, KEYS[k])
      if not is_read then problem = type(found) == 'table' and found.err or found end
      if is_read and kind ~= 'zset' then found = {found} end
      if not is_read or not found[1] then break end
      -- The members of one worker are in the order of the pops, which a leave reverses.
      local unique = format('%d,%04d,%s,%s', NOW, #taken / 2, ME, ARGV[3]:gsub(' ', ','))
      local member = start_entry(kind, KEYS[k], found[1], found[2] or '0', unique)
      call('ZADD', TAKEN, '-inf', member)
      taken[#taken + 1], taken[#taken + 2], bytes = '-inf', member, bytes + #member
    end
  end
  return taken, problem
end

local taken, suspect, problem, is_kept = {}, '', '', false
if want > 0 then taken, suspect, is_kept = take() end
if want > 0 and #taken == 0 and not is_kept then taken, problem = take_starts() end

if match(record, '^%d+ 0 ') then -- its first sync: until then the keys expire
  call('HSET', FILTER, 'queue:' .. QUEUE, 1, 'partitions', call('HGET', CRAWL, 'queues'))
  call('PERSIST', CRAWL)
  call('PERSIST', WORKERS)
  if f.ttl == 0 then call('PERSIST', FILTER) end
end
record = ARGV[3] .. table.concat(flags)
my.held, my.synced = held_by(ME), NOW
my.idle = (ARGV[6] == '-1' and my.held == 0) and 1 or 0
local others = want > 0 and #taken == 0 and reap(most)
keep(f)
save('@' .. ME, record)
return {'OK', record, taken, suspect, news(f), problem, others}
