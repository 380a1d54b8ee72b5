-- Move the leased fields ARGV[2..n] that still exist back to the start key of the type ARGV[1], to the end that is read
-- next: the first field becomes the first again. Return how many were moved.
local another = another_type(ARGV[1])
if another then return {another} end
local moved = 0
for i = #ARGV, 2, -1 do
  local score, datum = take_out(ARGV[i])
  if datum then
    moved = moved + 1
    if ARGV[1] == 'list' then
      redis.call('LPUSH', KEYS[1], datum)
    elseif ARGV[1] == 'set' then
      redis.call('SADD', KEYS[1], datum)
    else
      -- A start URL that was added again keeps its new score.
      redis.call('ZADD', KEYS[1], 'NX', tonumber(score) and score or 0, datum)
    end
  end
end
return {'ok', moved}
