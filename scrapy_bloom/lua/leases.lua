-- KEYS: the hash of a crawl. Returns of each registered worker its name, the number of its leases according to its
-- registration, and their real number.
local call, crawl, found = redis.call, redis.call('HGETALL', KEYS[1]), {}
local stem = string.sub(KEYS[1], 1, -6)
for i = 1, #crawl, 2 do
  local worker = string.match(crawl[i], '^@(.+)')
  if worker then
    local exist = call('ZCARD', stem .. 'leases:' .. worker) + call('ZCARD', stem .. 'taken:' .. worker)
    found[#found + 1] = {worker, tonumber(string.match(crawl[i + 1], ' (%d+)')), exist}
  end
end
return found
