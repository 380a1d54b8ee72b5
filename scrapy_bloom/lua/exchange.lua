-- exchange WORKER STAMP CRAWL FILTER RESET IDLE WANT MAX_DELIVERIES START, the counts of the lists, RELIED, CLAIMS, and these.
-- Offers, returns, holds, kept requests to queue again, failed and unreadable ones (each a digest, or the fingerprint
-- of a failed one, or ''; score, member), acknowledged members, and digests to mark. START is the member of the suspect
-- that the worker starts, or ''. With RESET the holds replace all leases. An offer without a member is only looked up:
-- the worker runs it itself, and marks it when it and all that it led to is done.
-- Returns a flag for each offer (1: new), the stamp, the requests taken (score, member), the worker's suspect or '',
-- whether it has started, and whether its next death makes it a dead letter. After these, if requests were wanted: whether
-- nothing is left for the worker to take. And if it took none: whether the crawl is quiet, the number and the oldest
-- contact of the other workers, and the result of `reap`.
-- STAMP is that of the worker's last answered call: with another one the server went back, or the packet is late.
-- RELIED is the reliance of the acknowledgements, see FIELDS, or ''. CLAIMS are names of workers and their latest stamps here
-- in the reliances of other partitions, in turn.
local stamp, is_reset, is_idle = tonumber(ARGV[2]), ARGV[5] == '1', ARGV[6] == '1'
local want, max_deliveries, start = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
if not my or ARGV[3] ~= crawl.id or stamp ~= my.stamp or missing_leases(ME, my) ~= 0 then return expired() end
local f = filter.open(FILTER, ARGV[4])
if not f then return expired() end

local LEASES, TAKEN = STEM .. 'leases:' .. ME, STEM .. 'taken:' .. ME
local is_change = is_reset and (my.replaced ~= 1 or my.held > 0) -- not a rejoin with nothing
local relied, claims = ARGV[18], ARGV[19]
local lists, at = {}, 20
for i = 10, 17 do
  local list = {}
  for j = 1, ARGV[i] * (i < 16 and 3 or 1) do list[j], at = ARGV[at], at + 1 end
  lists[#lists + 1] = list
end
local offers, returns, holds, kept, failed, unreadable, done, marks = unpack(lists)

-- Scores and members of entries, in turn.
local function without_digests(entries)
  local rest = {}
  for i = 1, #entries, 3 do rest[#rest + 1], rest[#rest + 2] = entries[i + 1], entries[i + 2] end
  return rest
end

local function is_last_chance(deaths) return deaths and max_deliveries > 0 and deaths + 1 >= max_deliveries end

-- Take requests from the front of the queue, but none that this worker has leased: equal requests are one member. A worker
-- takes its share, rounded up; one share is left for a worker that joins. A worker has one suspect at a time, and nothing
-- beside a suspect that becomes a dead letter with its next death. Return them, and 1 if there is nothing left to take.
local function take()
  local has_suspects = call('EXISTS', DELIVERIES) == 1
  if my.suspect > 0 and is_last_chance(call('HGET', DELIVERIES, call('HGET', SUSPECTS, ME))) then return {}, 1 end
  local waiting = call('ZCARD', QUEUE)
  local most = math.min(want, math.ceil(waiting / (call('HLEN', CRAWL) - FIXED + 1)))
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
  my.took, my.held = #members, my.held + #members
  return taken, (#members == 0 or #members < most) and 1 or 0
end

-- The writes that a full server refuses come first: then it refuses the exchange as a whole. Without offers the exchange
-- frees memory, and after an HDEL such a server executes it.
local flags, new = {}, {}
if #offers + #kept == 0 then call('HDEL', CRAWL, '') end
-- This changes nothing. If an ACL denies it, no request is marked that cannot be queued, and none leaves its place.
call('ZADD', QUEUE, 'XX', 0, '')
local is_checked, problem = pcall(function()
  for i = 1, #offers, 3 do
    local digest, is_queued = offers[i], offers[i + 2] ~= ''
    local is_new = digest == '' or is_queued and filter.check(f, digest) or not is_queued and not filter.has(f, digest)
    flags[#flags + 1] = is_new and '1' or '0'
    if is_new and is_queued then new[#new + 1], new[#new + 2] = offers[i + 1], offers[i + 2] end
  end
  for _, digest in ipairs(marks) do filter.check(f, digest) end
end)
-- Marked requests must be queued, also if an ACL denies a command of a filter that grows.
in_parts('ZADD', QUEUE, new)
if not is_checked then error(problem) end

for worker, claimed in string.gmatch(claims, '(%S+) (%d+)') do
  local r = call('HGET', CRAWL, '@' .. worker) or call('HGET', DEPARTED, '@' .. worker)
  if tonumber(claimed) > math.max(settled(), r and parse(r).stamp or 0) then
    note_loss(0)
    settle(tonumber(claimed))
  end
end
if relied ~= '' then my.relied = relied end

if my.took > 0 then -- this stamp proves that the last reply has arrived
  move(TAKEN, LEASES)
  my.took = 0
end
if is_reset then
  for i = 1, #holds, 3 do
    call('ZREM', LEASES, holds[i + 2])
    -- Without a digest, the waiting request may be an equal, later one.
    if holds[i] ~= '' then call('ZREM', QUEUE, holds[i + 2]) end
  end
  move(LEASES, QUEUE)
  my.held = in_parts('ZADD', LEASES, without_digests(holds))
  -- Perhaps the filter is another one: a link to a request that this worker holds is a repeat.
  for i = 1, #holds + #returns, 3 do
    local digest = holds[i] or returns[i - #holds]
    if digest ~= '' then filter.check(f, digest) end
  end
  call('HSET', FILTER, 'queue:' .. QUEUE, 1, 'partitions', call('HGET', CRAWL, 'partitions'))
  call('PERSIST', CRAWL)
  if f.ttl == 0 then call('PERSIST', FILTER) end
end

-- The first worker to come queues a kept request again.
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
for i = 3, #unreadable, 3 do done[#done + 1] = unreadable[i] end
my.held = my.held - in_parts('ZREM', LEASES, done)
-- An acknowledgement ends the count of deaths and a dead letter: a worker was frozen, not dead. That does not hold for the
-- suspect of another worker: a page that freezes each process for longer than the lease would be passed on for ever.
local suspects = call('EXISTS', DELIVERIES) == 1 and call('HGETALL', SUSPECTS)
if suspects then
  local others = {}
  for i = 1, #suspects, 2 do others[suspects[i + 1]] = suspects[i] ~= ME end
  for _, member in ipairs(done) do
    if not others[member] then
      call('HDEL', DELIVERIES, member)
      call('ZREM', DEAD, member)
    end
  end
end
in_parts('ZADD', DEAD, without_digests(unreadable))
if my.suspect > 0 then
  local suspect = call('HGET', SUSPECTS, ME)
  if not suspect or not call('ZSCORE', LEASES, suspect) then -- acknowledged, or evicted
    my.suspect = 0
  elseif suspect == start then
    my.suspect = 2
  end
end

local taken, is_dry = {}, false
if want > 0 then taken, is_dry = take() end
my.works, my.stamp, my.prior, my.offered, my.returned = 1, NOW, stamp, #offers / 3, #returns / 3
local busy = (is_idle and my.held == 0) and 0 or 1
if is_change or at > 20 or #taken > 0 or busy ~= my.busy then crawl.changed = NOW end
my.busy = busy
local others = want > 0 and #taken == 0 and reap(max_deliveries)
my.contact = NOW
save('@' .. ME, text_of(my))
local suspect = my.suspect > 0 and call('HGET', SUSPECTS, ME) or ''
local has_started = my.suspect == 2 and 1 or 0
local is_last = suspect ~= '' and is_last_chance(call('HGET', DELIVERIES, suspect)) and 1 or 0
return {'OK', news(f), table.concat(flags), NOW, taken, suspect, has_started, is_last, is_dry, others}
