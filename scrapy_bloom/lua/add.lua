-- KEYS and ARGV: see call.lua. Adds the items; the flags are 1 for those that are new.
-- Straight through if the caller's news are up to date, and the filter has one layer with room for all items, and no TTL. Then a
-- duplicate writes nothing, except for a caller that cannot notice that the server went back. All else, such as growth, a lost
-- shard or a call whose reply was lost, is for `numbered` below.
local v, flags, added = call('HMGET', KEYS[1], 'state', ARGV[3], 'count'), '', 0
if v[1] == ARGV[1] and v[2] == ARGV[2] then
  local id, forgotten, index, near, blocks, hashes, span =
    match(v[1], '^(%x+) 0 %d+ %d+ (%d+);(%d+) %d+ %d+ %d+ %d+ (%d+) (%d+) (%d+) (%d+);$')
  local is_plain = id and v[3] + #ARGV - FIRST < near + 0
  if is_plain and forgotten ~= '0' then
    for i = FIRST, #ARGV do is_plain = is_plain and call('HEXISTS', KEYS[1], 'f' .. sub(ARGV[i], 1, 16)) == 0 end
  end
  if is_plain then
    local prefix = prefix_of(KEYS[1], id) .. index .. ':'
    blocks, hashes, span = blocks + 0, hashes + 0, span + 0
    for i = FIRST, #ARGV do
      local block, name, from = read_block(ARGV[i], prefix, blocks, span)
      if #block < BLOCK then break end
      local is_new = not has_bits(block, ARGV[i], hashes)
      if is_new then
        call('SETRANGE', name, from, with_bits(block, ARGV[i], hashes))
        added = added + 1
      end
      flags = flags .. (is_new and '1' or '0')
    end
    local is_whole = #flags > #ARGV - FIRST
    if is_whole and (added > 0 or KEYS[2]) then
      call('HSET', KEYS[1], 'count', format('%d', v[3] + added), ARGV[3], ARGV[4] .. flags)
    elseif added > 0 then
      call('HSET', KEYS[1], 'count', format('%d', v[3] + added))
    end
    if is_whole then return flags end
  end
end
local filter = load_filter()
return numbered(filter, filter.check, flags)
