-- KEYS: the filter. ARGV: of a filter to create the parameters, id, secret, TTL in ms and sizes (empty: create none); whether to
-- delete the key first, the id of a lost filter, and to begin calls the field of the caller's record, or ''.
local filter, key, caller = load_filter(), KEYS[1], ARGV[8]
local id, secret, parameters = filter.describe(key)
-- A late packet, or a repeated call, finds the caller's record.
if ARGV[6] == '1' and not (id and call('HEXISTS', key, caller) == 1) then
  filter.delete(key)
  id, secret = nil, nil
end
if not id then
  if secret then return {'FOREIGN', secret} end
  if ARGV[5] == '' then return {'NONE'} end
  parameters, id, secret = ARGV[1], ARGV[2], ARGV[3]
  filter.create(key, id, secret, parameters, ARGV[5], ARGV[4])
  if ARGV[7] ~= '' then filter.sweep(key, ARGV[7], ARGV[5]) end
end
if caller ~= '' and call('HEXISTS', key, caller) == 0 then
  -- A caller opens the filter again after half an hour: records that are older than an hour are nobody's.
  local now, callers, old, first = filter.now(), call('HGET', key, 'callers') or '', {}, 1
  for name, opened, following in string.gmatch(callers, '(%S+) (%d+);()') do
    if opened + 3600000 >= now then break end
    old[#old + 1], first = name, following
  end
  now = format('%d', now)
  call('HSET', key, 'callers', sub(callers, first) .. caller .. ' ' .. now .. ';', caller, now .. ' 0 ')
  for _, name in ipairs(old) do call('HDEL', key, name) end
end
return {'OK', secret, parameters, call('HMGET', key, 'state', caller)}
