-- Moves those of the leased fields ARGV[2] and following that are still there back to the start key of the type ARGV[1],
-- to the end that is taken from; the first field will be the first again. Returns how many there were.
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
      -- One that was added again since has the score of that.
      redis.call('ZADD', KEYS[1], 'NX', tonumber(score) and score or 0, datum)
    end
  end
end
return {'ok', moved}
