-- Calls of a plain filter, numbered by their caller. KEYS: the filter, the caller's record. ARGV: the filter's id, the
-- number, the doubt (1: repeated, 2: executed in part), the items. The record holds the number and the flags of the last call for an
-- hour: a repeated call gets the first one's reply.
local call = {}

-- The reply: status, flags, and the changes that empty the caller's cache. A TTL's layers end; `left` is the ms until then.
function call.reply(f, status, flags)
  local oldest = f.layers[1]
  local left = f.ttl > 0 and oldest and math.floor(oldest.created + 1.25 * f.ttl - f.now) or 0
  return {status, flags, f.forgets, f.lost, left}
end

function call.flags(f, ask, first)
  local flags = {}
  for i = first, #ARGV do flags[i - first + 1] = ask(f, ARGV[i]) and '1' or '0' end
  return table.concat(flags)
end

function call.numbered(ask)
  local f, number = filter.open(KEYS[1], ARGV[1]), tonumber(ARGV[2])
  if not f then return {'GONE'} end
  local last, flags = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+) (%d*)$')
  last = tonumber(last)
  if last and last > number then return {'LATE'} end
  if last ~= number then
    flags = call.flags(f, ask, 4)
    filter.save(f)
    -- The items are unknown that an earlier attempt has marked, if it was executed in part, or its record is gone.
    if ARGV[3] == '2' or ARGV[3] == '1' and not last then flags = string.rep('1', #flags) end
    redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. flags, 'EX', 3600)
  end
  -- Without the caller's last call, the server went back to an earlier state.
  return call.reply(f, last and last >= number - 1 and 'OK' or 'BACK', flags)
end
