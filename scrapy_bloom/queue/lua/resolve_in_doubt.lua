-- Says whether exchange ARGV[2] of worker ARGV[1] was carried out: `done`, or `void`: it was not, and never will be.
-- If ARGV[3] is 1 it took something. That goes back to the queue, since the worker does not know it: all that is leased
-- but for those members of whose SHA-1 the first 16 digits are among the arguments that follow.
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
