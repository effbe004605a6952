-- Copies what a body says at its top level into dynamic metadata; see request_facts.py, which puts NAMESPACE,
-- READ, LISTS, NAMES, FACTS and ANY_CONTENT_TYPE in front. Stands behind outline.lua.

local TEXT_LONGEST = 4096 -- in the body; no name of a model is as long

local UNESCAPED = {
  ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t",
}

local function utf8(code)
  if code < 0x80 then
    return char(code)
  elseif code < 0x800 then
    return char(0xC0 + floor(code / 0x40), 0x80 + code % 0x40)
  elseif code < 0x10000 then
    return char(0xE0 + floor(code / 0x1000), 0x80 + floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
  end
  return char(0xF0 + floor(code / 0x40000), 0x80 + floor(code / 0x1000) % 0x40,
    0x80 + floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
end

-- Whether a text is UTF-8: metadata holds nothing else.
local function is_utf8(text)
  local at, size = 1, #text
  while at <= size do
    local c = byte(text, at)
    local more = c < 0x80 and 0 or c >= 0xC2 and c < 0xE0 and 1 or c >= 0xE0 and c < 0xF0 and 2
      or c >= 0xF0 and c < 0xF5 and 3
    if not more or at + more > size then
      return false
    end
    local second = byte(text, at + 1)
    if c == 0xE0 and second < 0xA0 or c == 0xED and second > 0x9F or c == 0xF0 and second < 0x90
        or c == 0xF4 and second > 0x8F then
      return false
    end
    for next = at + 1, at + more do
      local follows = byte(text, next)
      if follows < 0x80 or follows > 0xBF then
        return false
      end
    end
    at = at + more + 1
  end
  return true
end

-- The text that a JSON string stands for; nil if it is none.
local function text_of(raw)
  if find(raw, "\\", 1, true) == nil then
    return is_utf8(raw) and raw or nil
  end
  local parts, count, at = {}, 0, 1
  while true do
    local slash = find(raw, "\\", at, true)
    count = count + 1
    parts[count] = sub(raw, at, (slash or 0) - 1)
    if slash == nil then
      break
    end
    local kind = sub(raw, slash + 1, slash + 1)
    local part = UNESCAPED[kind]
    at = slash + 2
    if kind == "u" then
      local code = tonumber(match(raw, "^%x%x%x%x", at) or "", 16)
      at = at + 4
      if code and code >= 0xD800 and code < 0xDC00 then
        local low = tonumber(match(raw, "^\\u(%x%x%x%x)", at) or "", 16)
        code = low and low >= 0xDC00 and low < 0xE000 and 0x10000 + (code - 0xD800) * 0x400 + low - 0xDC00
        at = at + 6
      elseif code and code >= 0xDC00 and code < 0xE000 then
        code = nil
      end
      part = code and utf8(code)
    end
    if not part then
      return nil
    end
    count = count + 1
    parts[count] = part
  end
  local text = concat(parts)
  return is_utf8(text) and text or nil
end

-- The value as metadata holds it, and whether it can be read. Null, lists and mappings are none.
local function value_of(text, start, at, c)
  if c == 34 then
    if at - start > TEXT_LONGEST then -- as missing, a long text could stand for a number that engines read
      return nil, false
    end
    local value = text_of(sub(text, start + 1, at - 2))
    return value, value ~= nil
  elseif c == 123 or c == 91 then
    return nil, true
  end
  local word = sub(text, start, at - 1)
  if word == "true" then
    return true, true
  elseif word == "false" then
    return false, true
  elseif word == "null" then
    return nil, true
  end
  local number = match(word, "^-?%d+%.?%d*[eE]?[+-]?%d*$") and tonumber(word)
  if not number or number - number ~= 0 then -- what is beyond a double is infinite
    return nil, false
  end
  return number, true
end

-- What engines in Python take for a truth value where another stands: pydantic's words, in any case, and 1 and 0. What
-- is none of these they refuse, and it says nothing here.
local TRUTH = {
  [1] = true, ["1"] = true, ["true"] = true, t = true, yes = true, y = true, on = true,
  [0] = false, ["0"] = false, ["false"] = false, f = false, no = false, n = false, off = false,
}

local function truth_of(value)
  if type(value) == "boolean" or value == nil then
    return value
  end
  return TRUTH[type(value) == "string" and lower(value) or value]
end

-- The first bytes of keys of interest, escaped or not: other keys are not made into strings.
local FIRST = { [92] = true }
for _, keys in pairs({ READ, LISTS }) do
  for key in pairs(keys) do
    FIRST[byte(key)] = true
  end
end

-- How many texts, lists and objects a list holds; the numbers in it are the tokens of one text. A list that is none
-- is the engine's to refuse.
local function entries(text, at)
  local count, c = 0, nil
  at, c = after_space(text, at + 1)
  while c ~= 93 do
    if c == 34 or c == 91 or c == 123 then
      count = count + 1
    end
    at = after_value(text, at, c)
    if at == nil then
      return count
    end
    at, c = after_space(text, at)
    if c == 44 then
      at, c = after_space(text, at + 1)
    elseif c ~= 93 then
      return count
    end
  end
  return count
end

-- Puts the facts that are wanted into `facts`; returns whether the body can be read. Of a key that is there
-- twice the last counts, as for engines.
local function read(text, facts)
  for after, key, stop, start, c in member, text, opening(text) do
    if key == nil then
      return false
    end
    local name = FIRST[byte(text, key)] and name_of(text, key, stop)
    if READ[name] then
      local value, readable = value_of(text, start, after, c)
      if not readable then
        return false
      end
      if name == "stream" then
        value = truth_of(value)
      end
      facts[name] = value
    elseif LISTS[name] then
      facts[name] = c == 91 and entries(text, start) or nil
    end
  end
  return true
end

-- Puts what routes and filters want to know into the metadata; returns whether there was any.
function publish(metadata, facts, readable)
  local found = false
  for index = 1, #NAMES do
    local name = NAMES[index]
    local value
    if not readable then
      value = FACTS[name].error
    else
      value = facts[name]
      if value == nil then
        value = FACTS[name].missing
      end
    end
    if value ~= nil then
      metadata:set(NAMESPACE, name, value)
      found = true
    end
  end
  return found
end

-- Whether a request opens a tunnel (a WebSocket, CONNECT): it has no end, and to wait for its body is to wait for ever.
local function is_tunnel(headers)
  if headers:get(":method") == "CONNECT" then
    return true
  end
  local connection = headers:get("upgrade") and headers:get("connection")
  return connection ~= nil and find(lower(connection), "upgrade", 1, true) ~= nil
end

function envoy_on_request(handle)
  if is_tunnel(handle:headers()) then -- routes allow none; not left to them, or a body might pass unread
    handle:respond({ [":status"] = "403" }, "")
    return
  end
  if not ANY_CONTENT_TYPE then
    local kind = handle:headers():get("content-type")
    if kind == nil or find(lower(kind), "json", 1, true) == nil then
      return
    end
  end
  local body = handle:body()
  local length = body and body:length() or 0
  local facts = {}
  local readable = true
  if length > 0 then -- a body that makes this program fail must not pass as one that says nothing
    local went_well, found = pcall(read, body:getBytes(0, length), facts)
    readable = went_well and found
  end
  if publish(handle:streamInfo():dynamicMetadata(), facts, readable, length) then
    handle:clearRouteCache() -- routes match on facts
  end
end
