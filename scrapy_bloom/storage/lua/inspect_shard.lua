local occupant = kind()
local h = 0
local may = redis.pcall('BITFIELD', KEYS[1], 'GET', 'u1', 0)['err'] or ''
if string.find(may, 'ACL failure') or string.find(may, "can't run this command") then
  return redis.error_reply(may)
end
if occupant == 'shard' then h = number(0, 5) end
return {occupant, h}
