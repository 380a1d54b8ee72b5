-- Reads about ARGV[2] members of the SET KEYS[1] from the cursor ARGV[1], which belongs to the server run ARGV[3].
-- Another server, or the same one after a restart, cannot use the cursor: it returns 'other', and the scan starts over.
-- A server that denies INFO has no known run: each interruption restarts the scan.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'set' then return {kind, '', '0', {}} end
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
if ARGV[1] ~= '0' and run ~= ARGV[3] then return {'other', run, '0', {}} end
local found = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
return {kind, run, found[1], found[2]}
