-- Reads about ARGV[2] members of the SET KEYS[1] from the cursor ARGV[1] on, which the run ARGV[3] of a server gave.
-- A cursor means nothing to another server, or to the same one after a restart: what is read is from the start then.
-- A server that does not let this user ask for its run begins again at each interruption, and loses nothing by that.
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'set' then return {kind, '', '0', {}} end
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
if ARGV[1] ~= '0' and run ~= ARGV[3] then return {'other', run, '0', {}} end
local found = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
return {kind, run, found[1], found[2]}
