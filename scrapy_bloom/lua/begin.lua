-- Begin to fill a filter. KEYS: the filter, the place where a SET goes. ARGV: the data expected at the filter's key, and
-- goes: the id of a filter and its mark, 'set' or 'none'; id, secret, parameters, sizes and TTL of the new filter.
-- Returns the server's run id, or nothing if the key holds other data.
local id, kind, parameters = filter.describe(KEYS[1])
if id ~= ARGV[2] then -- otherwise the call is repeated
  local found = id and id .. (string.match(parameters, '"unfinished": "(%a+)"') or '') or kind or 'none'
  if found ~= ARGV[1] then return nil end
  if id or not kind then filter.delete(KEYS[1])
  elseif redis.call('RENAMENX', KEYS[1], KEYS[2]) == 0 then return nil end
  filter.create(KEYS[1], unpack(ARGV, 2, 6))
end
return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
