-- Says whether exchange ARGV[2] of worker ARGV[1] was carried out: `done`, with all that is leased, or `void`: it was
-- not, and never will be.
local my = find(ARGV[1])
local number = tonumber(ARGV[2])
if not my or my.closing ~= '' or number < my.number or number > my.number + 1 then return {'expired'} end
if number == my.number and my.void == '' then return {'done', entries_of(KEYS[4], 0, -1)} end
my.number, my.void = number, 'v'
record(ARGV[1], my)
return {'void'}
