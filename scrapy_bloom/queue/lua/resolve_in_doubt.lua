-- Resolves sync ARGV[2] of worker ARGV[1], whose reply was lost: `done`, or `void` if it was not
-- executed and never will be. If ARGV[3] is 1, a done sync took entries, which the worker does not
-- know: all its leases go back to the queue, except for members whose digests follow (the first 16
-- digits of their SHA-1).
local my = find(ARGV[1])
local number = tonumber(ARGV[2])
if not my or my.closing ~= '' or number < my.number or number > my.number + 1 then return {'expired'} end
if number > my.number or my.void ~= '' then
  my.number, my.void = number, 'v'
  record(ARGV[1], my)
  return {'void'}
end

if ARGV[3] == '0' then return {'done'} end
local is_kept = {}
for i = 4, #ARGV do is_kept[ARGV[i]] = true end
local leased = entries_of(KEYS[4], 0, -1)
local members, entries = {}, {}
for i = 1, #leased, 2 do
  if not is_kept[string.sub(redis.sha1hex(leased[i + 1]), 1, 16)] then
    members[#members + 1] = leased[i + 1]
    entries[#entries + 1], entries[#entries + 2] = leased[i], leased[i + 1]
  end
end
take_out(KEYS[4], members)
put(KEYS[1], entries)
note_waiting()
return {'done'}
