-- KEYS: the beginning of a key that does not exist. ARGV: commands. Tries each command with arguments that change nothing, or on
-- a key of its own. Returns the denied and the unknown ones, or the error of a server that refuses computed keys.
local denied, unknown, key = {}, {}, KEYS[1] .. ':x'
for _, command in ipairs(ARGV) do
  local words, least = {command}, ({SET = 4, HSET = 5})[command] or 1
  for count = 1, 5 do
    local refusal
    if count >= least then
      local reply = redis.pcall(unpack(words))
      refusal = type(reply) == 'table' and reply.err and string.lower(reply.err)
      if refusal and string.find(refusal, 'undeclared', 1, true) then return reply end
      -- A wrong number of arguments is refused first, then a missing permission, then words in place of numbers.
      if not refusal or not string.find(refusal, 'wrong number of arg', 1, true) then
        if refusal and string.find(refusal, 'unknown', 1, true) then unknown[#unknown + 1] = command end
        if refusal and (string.find(refusal, 'acl failure', 1, true) or string.find(refusal, 'the user executing', 1, true)) then
          denied[#denied + 1] = command
        end
        if command == 'LPUSH' or command == 'SADD' then redis.pcall('UNLINK', key) end
        break
      end
    end
    words[count + 1] = count == 1 and key or 'x'
  end
end
return {denied, unknown}
