-- Delete the hash KEYS[1] if it is unchanged: its field 'filter' is ARGV[1] or, if that is empty, its
-- fields are exactly ARGV[4..]. Its field 'unfinished' is ARGV[2], or missing if that is empty.
-- Returns whether the key is absent now, and the deleted fields. If ARGV[3] is 0, delete nothing, and
-- return the same.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'none' then return {1, {}} end
if kind ~= 'hash' then return {0, {}} end
local fields = redis.call('HGETALL', KEYS[1])
if ARGV[1] ~= '' then
  if redis.call('HGET', KEYS[1], 'filter') ~= ARGV[1] then return {0, {}} end
else
  if #fields ~= 2 * (#ARGV - 3) then return {0, {}} end
  for i = 4, #ARGV do
    if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 0 then return {0, {}} end
  end
end
if (redis.call('HGET', KEYS[1], 'unfinished') or '') ~= ARGV[2] then return {0, {}} end
if ARGV[3] == '1' then redis.call('UNLINK', KEYS[1]) end
return {1, fields}
