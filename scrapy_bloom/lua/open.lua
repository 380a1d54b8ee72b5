-- KEYS: the filter, and to begin calls the caller's record. ARGV: of a filter to create the parameters, id, secret, TTL in
-- ms and sizes (empty: create none); whether to delete the key first, and the id of a lost filter.
local key = KEYS[1]
local id, secret, parameters = filter.describe(key)
-- A late packet, or a repeated call, finds the caller's record.
if ARGV[6] == '1' and redis.call('EXISTS', KEYS[2]) == 0 then
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
if KEYS[2] then redis.call('SET', KEYS[2], '0 ', 'EX', 3600, 'NX') end
local f = filter.open(key, id)
return {'OK', id, secret, parameters, f.forgets, f.lost, #f.layers}
