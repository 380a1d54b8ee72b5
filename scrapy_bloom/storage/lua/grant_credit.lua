-- Grant room for ARGV[2] items and up to ARGV[3] more, of a layer with room for ARGV[4] (-1: unlimited),
-- by the counter ARGV[1] of the hash KEYS[1]. Beyond the need, at most 1 / ARGV[5] of the remaining
-- room is granted. Returns the grant, -1 without a counter, and the room granted to all.
local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then return {-1, 0} end
local given = tonumber(counter)
if not given then return {0, tonumber(string.match(counter, '%d+') or 0)} end
local need, block, limit, part = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local granted = need + block
if limit >= 0 then
  local left = math.max(0, limit - given)
  granted = math.min(left, need + math.min(block, math.floor(left / part)))
end
if granted > 0 then redis.call('HINCRBY', KEYS[1], ARGV[1], granted) end
return {granted, given + granted}
