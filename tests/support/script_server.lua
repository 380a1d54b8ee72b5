-- The Lua of a server, for script_server.py, which passes `execute`: it executes a command, and returns the reply. A
-- list comes as true and its elements, a status as nil and the text, an error as nil, nil and the text.
local execute = ...

local function received(first, ...)
  if first == true then return {...} end
  if first ~= nil then return first end
  local status, message = ...
  if message then error({err = message}) end
  return {ok = status}
end

local globals = {redis = {call = function(...) return received(execute(...)) end}}
for _, name in ipairs {
  'assert', 'error', 'getmetatable', 'ipairs', 'math', 'next', 'pairs', 'pcall', 'rawequal', 'rawget', 'rawset',
  'select', 'setmetatable', 'string', 'table', 'tonumber', 'tostring', 'type', 'unpack',
} do globals[name] = _G[name] end

setmetatable(globals, {__index = function(_, name)
  error('Script attempted to access nonexistent global variable \'' .. tostring(name) .. '\'', 2)
end})
-- Stays empty, so that each assignment to a global variable is refused.
local environment = setmetatable({}, {
  __index = globals,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})

-- Returns a function, or a message.
local function compile(text)
  local script, message = loadstring(text, '@user_script')
  return script and setfenv(script, environment) or message
end

-- The reply of the last script as a sequence of numbers and strings. True precedes the number of elements of a list, and
-- false is nil.
local sent, size

local function send(value)
  local kind = type(value)
  size = size + 1
  if kind ~= 'table' then
    sent[size] = (kind == 'string' or kind == 'number') and value or (value == true and 1)
  elseif type(value.ok) == 'string' then
    sent[size] = value.ok
  else
    local count = 0
    while value[count + 1] ~= nil do count = count + 1 end
    sent[size], sent[size + 1] = true, count
    size = size + 1
    for i = 1, count do send(value[i]) end
  end
end

-- Lua returns about 8,000 values at most.
local function following(first) return unpack(sent, first, math.min(size, first + 4999)) end

-- Executes a script. Returns true, the size of the reply and its first part, or false and the error, which is an exception
-- of Python or a text.
local function run(script, keys, arguments)
  globals.KEYS, globals.ARGV = keys, arguments
  local passed, result = pcall(script)
  if not passed then
    if type(result) == 'table' then return false, result.err or 'ERR unknown error' end
    return false, type(result) == 'userdata' and result or 'ERR ' .. tostring(result)
  end
  sent, size = {}, 0
  send(result)
  return true, size, following(1)
end

return compile, run, following
