-- Inspect a shard key. Fails if the user may not run BITFIELD.
local contents = kind()
local h = 0
local may = redis.pcall('BITFIELD', KEYS[1], 'GET', 'u1', 0)['err'] or ''
if string.find(may, 'ACL failure') or string.find(may, "can't run this command") then
  return redis.error_reply(may)
end
if contents == 'shard' then h = number(0, 5) end
return {contents, h}
