-- exchange WORKER STAMP CRAWL FILTER RESET IDLE WANT MAX_DELIVERIES START, the counts of the following, and these:
-- offers, returns, holds, and kept requests to queue again (each a digest or '', score, member), failed requests
-- (fingerprint, score, member), unreadable ones (score, member), and acknowledged members. START is the member of the
-- suspect that the worker starts, or ''. With RESET the holds replace all leases.
-- Returns a flag for each offer (1: new), the stamp, the requests taken (score, member), the worker's suspect or '', whether
-- it has started, and if requests were wanted and none waited: whether the crawl is quiet, the number and the oldest
-- contact of the other workers, and what `reap` did.
-- STAMP is that of the worker's last answered call: with another one the server went back, or the packet is late.
local stamp, is_reset, is_idle = tonumber(ARGV[2]), ARGV[5] == '1', ARGV[6] == '1'
local want, max_deliveries, start = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
if not my or ARGV[3] ~= crawl.id or stamp ~= my.stamp or has_lost_leases(ME, my) then return expired() end
local f = filter.open(FILTER, ARGV[4])
if not f then return expired() end

local LEASES, TAKEN = STEM .. 'leases:' .. ME, STEM .. 'taken:' .. ME
local at = 17
local function following(count, step)
  local part = {}
  for i = 1, count * step do part[i] = ARGV[at + i - 1] end
  at = at + count * step
  return part
end
local offers, returns = following(ARGV[10], 3), following(ARGV[11], 3)
local holds, kept = following(ARGV[12], 3), following(ARGV[13], 3)
local failed, unreadable, done = following(ARGV[14], 3), following(ARGV[15], 2), following(ARGV[16], 1)

-- Scores and members of entries, in turn.
local function without_digests(entries)
  local rest = {}
  for i = 1, #entries, 3 do rest[#rest + 1], rest[#rest + 2] = entries[i + 1], entries[i + 2] end
  return rest
end

-- Take requests from the front of the queue, but none that this worker has leased: equal requests are one member. A worker
-- takes no more than its share; one share is left for a worker that joins. A worker has one suspect at a time, and beside
-- one that becomes a dead letter with its next death, nothing.
local function take()
  local function is_last_chance(deaths) return deaths and max_deliveries > 0 and deaths + 1 >= max_deliveries end
  local has_suspects = call('EXISTS', DELIVERIES) == 1
  if my.suspect > 0 and is_last_chance(call('HGET', DELIVERIES, call('HGET', SUSPECTS, ME))) then return {} end
  local waiting = call('ZCARD', QUEUE)
  local most = math.min(want, math.max(1, math.floor(waiting / (call('HLEN', CRAWL) - FIXED + 1))))
  local taken, members, first = {}, {}, 0
  while #members < most and first < waiting do
    local found = call('ZRANGE', QUEUE, first, first + most - 1, 'WITHSCORES')
    first = first + most
    for i = 1, #found, 2 do
      local member = found[i]
      local is_mine = my.held > 0 and call('ZSCORE', LEASES, member)
      local deaths = has_suspects and call('HGET', DELIVERIES, member)
      if #members < most and not is_mine and not (deaths and my.suspect > 0) then
        local is_last = is_last_chance(deaths)
        if is_last and my.held + #members > 0 then most = 0 break end
        if is_last then most = 1 end
        if deaths then
          my.suspect = 1
          write(SUSPECTS, ME, member)
        end
        members[#members + 1], taken[#taken + 1], taken[#taken + 2] = member, found[i + 1], member
      end
    end
  end
  in_parts('ZREM', QUEUE, members)
  in_parts('ZADD', TAKEN, taken)
  my.took = #members
  my.held = my.held + my.took
  return taken
end

-- The writes that a full server refuses come first: then it refuses the exchange as a whole.
local flags, new = {}, {}
for i = 1, #offers, 3 do
  local is_new = offers[i] == '' or filter.check(f, offers[i])
  flags[#flags + 1] = is_new and '1' or '0'
  if is_new then new[#new + 1], new[#new + 2] = offers[i + 1], offers[i + 2] end
end
in_parts('ZADD', QUEUE, new)

if my.took > 0 then -- this stamp proves that the last reply has arrived
  move(TAKEN, LEASES)
  my.took = 0
end
if is_reset then
  local leases, is_held, back = entries_of(LEASES), {}, {}
  for i = 1, #holds, 3 do
    is_held[holds[i + 2]] = true
    -- Without a digest, the waiting request may be an equal, later one.
    if holds[i] ~= '' then call('ZREM', QUEUE, holds[i + 2]) end
  end
  for i = 1, #leases, 2 do
    if not is_held[leases[i + 1]] then back[#back + 1], back[#back + 2] = leases[i], leases[i + 1] end
  end
  call('DEL', LEASES)
  my.held = in_parts('ZADD', LEASES, without_digests(holds))
  in_parts('ZADD', QUEUE, back)
  -- Perhaps the filter is another one: a link to a request that this worker holds is a repeat.
  for _, entries in ipairs({holds, returns}) do
    for i = 1, #entries, 3 do
      if entries[i] ~= '' then filter.check(f, entries[i]) end
    end
  end
  filter.add_user(FILTER, QUEUE)
  call('PERSIST', CRAWL)
  if f.ttl == 0 then call('PERSIST', FILTER) end
end

-- Whichever worker comes first queues a kept request again.
for i = 1, #kept, 3 do
  if call('HDEL', FAILED, kept[i + 2]) == 1 then
    if kept[i] ~= '' then filter.check(f, kept[i]) end
    call('ZADD', QUEUE, kept[i + 1], kept[i + 2])
  end
end
filter.save(f)

-- A returned request waits even if another worker has leased it: that may be an equal, earlier one.
for i = 3, #returns, 3 do my.held = my.held - call('ZREM', LEASES, returns[i]) end
in_parts('ZADD', QUEUE, without_digests(returns))
for i = 3, #failed, 3 do
  write(FAILED, failed[i], call('HGET', CRAWL, 'run') .. ' ' .. failed[i - 1] .. ' ' .. failed[i - 2])
  done[#done + 1] = failed[i]
end
for i = 2, #unreadable, 2 do done[#done + 1] = unreadable[i] end
my.held = my.held - in_parts('ZREM', LEASES, done)
in_parts('HDEL', DELIVERIES, done)
in_parts('ZADD', DEAD, unreadable)
if my.suspect > 0 then
  local suspect = call('HGET', SUSPECTS, ME)
  if not call('ZSCORE', LEASES, suspect) then
    my.suspect = 0
  elseif suspect == start then
    my.suspect = 2
  end
end

local taken = want > 0 and take() or {}
my.works, my.stamp, my.prior = 1, NOW, stamp
my.busy = (is_idle and my.held == 0) and 0 or 1
local others = want > 0 and #taken == 0 and reap(max_deliveries)
my.contact = NOW
save('@' .. ME, text_of(my))
local suspect = my.suspect > 0 and call('HGET', SUSPECTS, ME) or ''
return {'OK', news(f), table.concat(flags), NOW, taken, suspect, my.suspect == 2 and 1 or 0, others}
