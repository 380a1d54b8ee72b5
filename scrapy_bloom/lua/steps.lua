-- What becomes of a numbered call. A caller's RECORD in Redis is `opened number result`: when it began, and the last of its
-- calls that was executed. KNOWN begins with the `opened number ` of the last one whose reply has arrived.
-- Returns 'next': execute the call. 'again': one behind the known one was executed, and its reply was lost, so that the record has
-- the result; or this call is late. nil: there is no such caller any more, or the server went back.
local function step(record, known)
  local opened, last = match(record or '', '^(%d+) (%d+) ')
  local same, answered = match(known, '^(%d+) (%d+) ')
  if opened ~= same or last + 0 < answered + 0 then return nil end
  return last == answered and 'next' or 'again'
end
