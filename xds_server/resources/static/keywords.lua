-- Which templates have a keyword in what a user wrote; see keywords.py, which puts TEMPLATES, FOLDED, HEADER,
-- WINDOW and STEPS_MOST in front of this.
--
-- The outline of the body is read once: strings are skipped by a plain search for the next quote (memchr), the
-- rest by a loop over bytes that LuaJIT compiles. Only the newest WINDOW bytes of text are then looked at.

local byte, char, find, gsub, lower, sub = string.byte, string.char, string.find, string.gsub, string.lower, string.sub
local concat, floor = table.concat, math.floor

local STEP_STRING = 16 -- what skipping a string costs, in bytes outside of strings
local SLASHES_MOST = 4096 -- backslashes in a row
local DEPTH_MOST = 64
local MISSES_MOST = 1000 -- places where a keyword is part of another word

local steps = 0

-- Returns the position after the closing quote; nil = there is none, or this body costs too much.
local function after_string(text, at)
  while true do
    local quote = find(text, '"', at, true)
    steps = steps + STEP_STRING
    if quote == nil or steps > STEPS_MOST then
      return nil
    end
    local before = quote - 1
    while byte(text, before) == 92 and quote - before < SLASHES_MOST do
      before = before - 1
    end
    local slashes = quote - before - 1
    steps = steps + slashes
    if slashes + 1 >= SLASHES_MOST then
      return nil
    end
    if slashes % 2 == 0 then
      return quote + 1
    end
    at = quote + 1
  end
end

local function after_space(text, at)
  local c = byte(text, at)
  while c == 32 or c == 10 or c == 13 or c == 9 do
    at = at + 1
    c = byte(text, at)
  end
  return at, c
end

-- Returns where the strings begin and end that a user wrote: `prompt`, or the `content` of messages whose role is
-- user (or not told). Nothing if the body is broken or costs too much.
local function prompts(text)
  local starts, stops, count = {}, {}, 0
  local kinds, keys, depth = {}, {}, 0
  local message, is_user = 0, true
  local at, size = 1, #text
  while at <= size do
    local c = byte(text, at)
    if c == 34 then
      local start = at + 1
      at = after_string(text, start)
      if at == nil then
        return starts, stops, 0
      end
      local stop = at - 2
      local following, next_c = after_space(text, at)
      if next_c == 58 and kinds[depth] == 123 then
        keys[depth] = stop - start < 16 and sub(text, start, stop) or ""
        at = following + 1
      else
        local top, is_text = keys[1], false
        if top == "prompt" then
          is_text = depth == 1 or depth == 2 and kinds[2] == 91
        elseif top == "messages" and kinds[2] == 91 and kinds[3] == 123 then
          if depth == 3 then
            is_text = keys[3] == "content"
            if keys[3] == "role" then
              is_user = sub(text, start, stop) == "user"
            end
          elseif depth == 5 then
            is_text = keys[3] == "content" and kinds[4] == 91 and kinds[5] == 123 and keys[5] == "text"
          end
        end
        if is_text then
          count = count + 1
          starts[count], stops[count] = start, stop
        end
      end
    else
      at = at + 1
      if c == 123 or c == 91 then
        depth = depth + 1
        if depth > DEPTH_MOST then
          return starts, stops, 0
        end
        kinds[depth], keys[depth] = c, nil
        if depth == 3 then
          message, is_user = count, true
        end
      elseif c == 125 or c == 93 then
        if depth == 3 and keys[1] == "messages" and not is_user then
          count = message
        end
        depth = depth - 1
        if depth <= 0 then
          return starts, stops, count
        end
      end
      steps = steps + 1
      if steps > STEPS_MOST then
        return starts, stops, 0
      end
    end
  end
  return starts, stops, 0
end

-- Returns the newest WINDOW bytes of these strings, the newest string first.
local function newest(text, starts, stops, count)
  local parts, left = {}, WINDOW
  for index = count, 1, -1 do
    local start, stop = starts[index], stops[index]
    local is_cut = stop - start >= left
    if is_cut then
      start = stop - left + 1
    end
    -- A word that is cut in two is no word: "_" goes on with what came before.
    parts[#parts + 1] = (is_cut and "_" or "") .. sub(text, start, stop)
    left = left - (stop - start + 1)
    if left <= 0 then
      break
    end
  end
  return concat(parts, "\1")
end

local function utf8(code)
  if code < 128 then
    return char(code)
  elseif code < 2048 then
    return char(192 + floor(code / 64), 128 + code % 64)
  end
  return char(224 + floor(code / 4096), 128 + floor(code / 64) % 64, 128 + code % 64)
end

local ESCAPES = { n = " ", r = " ", t = " ", b = " ", f = " " }

local function unescaped(c, hex)
  if c == "u" then
    return #hex == 4 and utf8(tonumber(hex, 16)) or hex
  end
  return (ESCAPES[c] or c) .. hex
end

-- Two halves that were escaped apart become the one letter that they stand for.
local function joined(b, c, e, f)
  local code = 65536 + (byte(b) % 16 * 64 + byte(c) % 64) * 1024 + byte(e) % 16 * 64 + byte(f) % 64
  return char(240 + floor(code / 262144), 128 + floor(code / 4096) % 64, 128 + floor(code / 64) % 64, 128 + code % 64)
end

local function folded(text)
  if find(text, "\\", 1, true) then
    text = gsub(text, "\\(.)(%x?%x?%x?%x?)", unescaped)
    if find(text, "\237", 1, true) then
      text = gsub(text, "\237([\160-\175])([\128-\191])\237([\176-\191])([\128-\191])", joined)
    end
  end
  text = lower(text)
  if find(text, "[\194-\244]") then
    text = gsub(text, "[\194-\244][\128-\191]+", FOLDED)
  end
  return (gsub(text, "%s+", " "))
end

local function is_ascii_letter(c)
  return c >= 97 and c <= 122 or c >= 48 and c <= 57 or c == 95
end

local function is_letter_before(text, at)
  local c = byte(text, at - 1)
  if c == nil or c < 128 then
    return c ~= nil and is_ascii_letter(c)
  end
  local lead = byte(text, at - 2)
  if lead ~= nil and lead < 192 then
    return byte(text, at - 3) == 225
  end
  return lead ~= nil and lead >= 195 and lead < 224
end

local function is_letter_at(text, at)
  local c = byte(text, at)
  if c == nil or c < 128 then
    return c ~= nil and is_ascii_letter(c)
  end
  return c >= 195 and c < 224 or c == 225
end

local function has(text, keyword)
  local word, at = keyword[1], 1
  for _ = 1, MISSES_MOST do
    local first, last = find(text, word, at, true)
    if first == nil then
      return false
    end
    if not (keyword[2] and is_letter_before(text, first)) and not (keyword[3] and is_letter_at(text, last + 1)) then
      return true
    end
    at = first + 1
  end
  return false
end

local function has_any(text, keywords)
  for _, keyword in ipairs(keywords) do
    if has(text, keyword) then
      return true
    end
  end
  return false
end

-- Returns the names of the templates, each between spaces; nil for none.
local function templates_of(text)
  steps = 0
  local starts, stops, count = prompts(text)
  if count == 0 then
    return nil
  end
  text = folded(newest(text, starts, stops, count))
  local names
  for _, template in ipairs(TEMPLATES) do
    if has_any(text, template[2]) then
      names = (names or " ") .. template[1] .. " "
    end
  end
  return names
end

function envoy_on_request(handle)
  handle:headers():remove(HEADER)
  local body = handle:body()
  if body == nil then
    return
  end
  local length = body:length()
  if length == 0 then
    return
  end
  local names = templates_of(body:getBytes(0, length))
  if names then
    handle:headers():replace(HEADER, names)
    handle:clearRouteCache()
  end
end
