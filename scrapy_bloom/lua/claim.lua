-- KEYS: a claim. ARGV: the claimant, the ms for which it claims from now on; 0 gives the claim back. Returns 1, or 0 if another
-- claimant has it. Only commands of a filter are called, so that a user needs no further permissions. A claim without an end is
-- nobody's: PEXPIREAT was denied, which ended the crawl of its claimant.
local owner, now = redis.call('HGET', KEYS[1], 'owner'), redis.call('TIME')
if owner and owner ~= ARGV[1] and redis.call('PTTL', KEYS[1]) ~= -1 then return 0 end
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
redis.call('PEXPIREAT', KEYS[1], string.format('%d', now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[2]))
return 1
