-- Deletes the hash KEYS[1] if it is still the one that was seen: its field 'filter' is ARGV[1]; or, where that is empty, its
-- fields are those named behind ARGV[2]. Its field 'unfinished' is ARGV[2], or missing where that is empty. Returns whether nothing is there now, and the fields of what was deleted.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'none' then return {1, {}} end
if kind ~= 'hash' then return {0, {}} end
local fields = redis.call('HGETALL', KEYS[1])
if ARGV[1] ~= '' then
  if redis.call('HGET', KEYS[1], 'filter') ~= ARGV[1] then return {0, {}} end
else
  if #fields ~= 2 * (#ARGV - 2) then return {0, {}} end
  for i = 3, #ARGV do
    if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 0 then return {0, {}} end
  end
end
if (redis.call('HGET', KEYS[1], 'unfinished') or '') ~= ARGV[2] then return {0, {}} end
redis.call('UNLINK', KEYS[1])
return {1, fields}
