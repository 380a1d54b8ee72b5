-- Lease up to ARGV[2] data of a start key of the type ARGV[1], in scrapy-redis's order. Their fields have numbers from ARGV[3]
-- on, and end with ARGV[4]. The data are taken first: a full server then accepts the writes.
local another = another_type(ARGV[1])
if another then return {another} end
local want, number = tonumber(ARGV[2]), tonumber(ARGV[3])
local data, scores = {}, {}
if ARGV[1] == 'list' then
  data = redis.call('LRANGE', KEYS[1], 0, want - 1)
  redis.call('LTRIM', KEYS[1], want, -1)
elseif ARGV[1] == 'set' then
  data = redis.call('SPOP', KEYS[1], want)
else
  local found = redis.call('ZPOPMAX', KEYS[1], want)
  for i = 1, #found, 2 do data[#data + 1], scores[#scores + 1] = found[i], found[i + 1] end
end
for i, datum in ipairs(data) do
  redis.call('HSET', KEYS[2], string.format('%.0f', number + i - 1) .. ARGV[4], (scores[i] or '') .. ' ' .. datum)
end
return {'ok', data}
