-- Gives room for ARGV[2] items and up to ARGV[3] more, of a layer that has ARGV[4] in all (-1: without limit), by the
-- counter ARGV[1] of the hash KEYS[1]. Of what is left at most one part in ARGV[5] is given beyond the need.
local told = redis.call('HGET', KEYS[1], ARGV[1])
if not told then return {-1, 0} end
local given = tonumber(told)
if not given then return {0, tonumber(string.match(told, '%d+') or 0)} end
local need, block, limit, part = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local granted = need + block
if limit >= 0 then
  local left = math.max(0, limit - given)
  granted = math.min(left, need + math.min(block, math.floor(left / part)))
end
if granted > 0 then redis.call('HINCRBY', KEYS[1], ARGV[1], granted) end
return {granted, given + granted}
