-- The outline of a JSON body: the keys of the top-level object, and where their values begin and end.
--
-- Shared by the programs that read bodies, so that what is routed, counted and rewritten is the same. Strings
-- are skipped by a plain search for the next quote (memchr), everything else by a loop over bytes that LuaJIT
-- compiles. Nothing here matches patterns against the text of a body: that is 10-50 times slower.

local byte, char, find, gsub, lower, sub = string.byte, string.char, string.find, string.gsub, string.lower, string.sub
local concat, floor, format, match = table.concat, math.floor, string.format, string.match

local KEY_LONGEST = 6 * 21 -- `max_completion_tokens` with every letter as \u00xx

-- Each of these takes and returns positions; nil = the text ends too early.

-- Whether the quote is part of the text: an odd number of backslashes before it.
local function is_escaped(text, quote)
  local before = quote - 1
  while byte(text, before) == 92 do
    before = before - 1
  end
  return (quote - before) % 2 == 0
end

local function after_string(text, at)
  local quote = find(text, '"', at, true)
  while quote ~= nil and byte(text, quote - 1) == 92
      and (byte(text, quote - 2) ~= 92 or is_escaped(text, quote)) do
    quote = find(text, '"', quote + 1, true)
  end
  return quote and quote + 1
end

local function after_space(text, at)
  local c = byte(text, at)
  while c == 32 or c == 10 or c == 13 or c == 9 do
    at = at + 1
    c = byte(text, at)
  end
  return at, c
end

-- A loop of its own for what is no structure: the one path that LuaJIT compiles first is then the one that counts.
local function after_plain(text, at)
  local c = byte(text, at)
  while c ~= nil and c ~= 34 and c ~= 91 and c ~= 93 and c ~= 123 and c ~= 125 do
    at = at + 1
    c = byte(text, at)
  end
  return at, c
end

local function after_nested(text, at)
  local depth = 1
  while depth > 0 do
    local c
    at, c = after_plain(text, at)
    at = at + 1
    if c == 34 then
      at = after_string(text, at)
      if at == nil then
        return nil
      end
    elseif c == 123 or c == 91 then
      depth = depth + 1
    elseif c == nil then
      return nil
    else
      depth = depth - 1
    end
  end
  return at
end

-- Numbers and words are not judged: the engine does that.
local function after_scalar(text, at)
  local first = at
  local c = byte(text, at)
  while c ~= nil and (c >= 48 and c <= 57 or c >= 97 and c <= 122 or c >= 65 and c <= 90
      or c == 45 or c == 43 or c == 46) do
    at = at + 1
    c = byte(text, at)
  end
  return at > first and at or nil
end

local function after_value(text, at, c)
  if c == 34 then
    return after_string(text, at + 1)
  elseif c == 123 or c == 91 then
    return after_nested(text, at + 1)
  end
  return after_scalar(text, at)
end

-- Functions that make functions are never compiled, nor what calls them.
local function character(code)
  return char(tonumber(code, 16))
end

local function unescaped(text)
  if find(text, "\\", 1, true) == nil then
    return text
  end
  return (gsub(text, "\\u00(%x%x)", character))
end

-- Where the top-level object begins, as `member` takes it; 0 = the text is something else.
local function opening(text)
  -- Python's json takes a byte order mark.
  local at, c = after_space(text, sub(text, 1, 3) == "\239\187\191" and 4 or 1)
  return c == 123 and -at or 0
end

-- What `member` says at the closing brace: nothing, which ends the loop, unless something follows it.
local function ended(text, brace)
  local _, rest = after_space(text, brace + 1)
  if rest ~= nil then
    return 0
  end
end

-- One step of a loop over the members of the top-level object:
--
--   for after, key, stop, start, c in member, text, opening(text) do
--
-- The key is text[key..stop], still escaped; the value is text[start..after - 1] and begins with c. A step without
-- a key says that the text is no JSON object.
local function member(text, at)
  local c
  if at < 0 then
    at, c = after_space(text, 1 - at)
    if c == 125 then
      return ended(text, at)
    end
  else
    at, c = after_space(text, at)
    if c == 125 then
      return ended(text, at)
    elseif c ~= 44 then
      return 0
    end
    at, c = after_space(text, at + 1)
  end
  if c ~= 34 then
    return 0
  end
  local key = at + 1
  local behind = after_string(text, key)
  if behind == nil then
    return 0
  end
  at, c = after_space(text, behind)
  if c ~= 58 then
    return 0
  end
  local start
  start, c = after_space(text, at + 1)
  local after = after_value(text, start, c)
  if after == nil then
    return 0
  end
  return after, key, behind - 2, start, c
end

-- A key of interest as it is meant; nil for one that is too long to be any.
local function name_of(text, key, stop)
  return stop - key < KEY_LONGEST and unescaped(sub(text, key, stop)) or nil
end
