-- Makes the body of one attempt fit the tier that it goes to; see rewrite.py. Stands behind outline.lua.
--
-- Runs behind a filter that puts the tier's instruction into a header, which no client can set.

local HEADER = "x-fleet-rewrite"
local LIMITS = { max_tokens = true, max_completion_tokens = true }

-- Instructions by the text of the header: as many as there are tiers.
local instructions = {}

local function instruction_of(text)
  local known = instructions[text]
  if known == nil then
    local unreadable, scale, least, absent, model = match(text, "^(%S+) (%S+) (%S+) (%S+) ?(.*)$")
    known = {
      refuses = unreadable == "refuse",
      scale = tonumber(scale), -- nil: limits stay
      least = tonumber(least),
      absent = absent ~= "-" and absent or nil, -- nil: what states no limit gets none
      model = model ~= "" and model or nil, -- as a JSON string; nil: stays
    }
    instructions[text] = known
  end
  return known
end

-- The limit that a value states: a number, false for "none" (null, or llama.cpp's -1), nil for nonsense.
local function limit_of(value, c)
  if value == "null" then
    return false
  end
  if c == 34 then -- engines in Python take numbers in quotes
    value = match(unescaped(sub(value, 2, -2)), "^%s*([+-]?%d[%d_]*%.?0*)%s*$")
    value = value and gsub(value, "_", "")
  elseif c ~= 45 and (c < 48 or c > 57) then
    return nil
  end
  local number = tonumber(value)
  if number == nil or number ~= floor(number) or number > 1e300 then
    return nil
  end
  return number >= 0 and number
end

local function most_of(asked, told)
  local most = floor(asked * told.scale + 1e-9) -- 0.29 * 100 is less than 29
  return most < told.least and told.least or most
end

local function is_limited(limited)
  for key in pairs(LIMITS) do
    if limited[key] then
      return true
    end
  end
  return false
end

-- Returns the new body, nil if the old one fits as it is, or false if it cannot be read.
local function rewritten(text, told, completes)
  local parts, count = {}, 0
  local done = 1 -- the text before this is in `parts`
  local changes = false
  local limited = {} -- by key; of a key that is there twice, engines take the last
  local unlimited = {} -- which parts are values that state no limit
  local brace, is_empty = opening(text), true
  for after, key, stop, start, c in member, text, brace do
    if key == nil then
      return false
    end
    is_empty = false
    local first, name = byte(text, key), nil
    if first == 109 or first == 92 then -- all keys of interest begin with m
      name = name_of(text, key, stop)
    end
    local instead
    if name == "model" and told.model then
      if c == 34 then
        instead = told.model
      elseif told.refuses then
        return false
      end
    elseif told.scale and LIMITS[name] then
      local value = sub(text, start, after - 1)
      local asked = limit_of(value, c)
      limited[name] = asked ~= false
      if asked then
        local most = most_of(asked, told)
        instead = most < asked and format("%.0f", most) or nil
      elseif asked == false then
        instead = value
        unlimited[#unlimited + 1] = count + 2
      end
    end
    if instead then
      changes = changes or sub(text, start, after - 1) ~= instead
      parts[count + 1] = sub(text, done, start - 1)
      parts[count + 2] = instead
      count = count + 2
      done = after
    end
  end
  local inserted
  if told.absent and completes and not is_limited(limited) then
    changes = true
    for _, part in ipairs(unlimited) do
      parts[part] = told.absent
    end
    if #unlimited == 0 then
      inserted = '"max_tokens":' .. told.absent .. (is_empty and "" or ",")
    end
  end
  if not changes then
    return nil
  end
  parts[count + 1] = sub(text, done)
  if inserted then
    parts[1] = sub(parts[1], 1, -brace) .. inserted .. sub(parts[1], 1 - brace)
  end
  return concat(parts)
end

local REFUSAL = '{"error":{"message":"The body must be a JSON object, and its model a string.",'
  .. '"type":"invalid_request_error","param":null,"code":"invalid_body"}}'

-- The headers are those of the request, whatever the attempt: an earlier one may have left its own length.
local function set_length(handle, length)
  local headers = handle:headers()
  if headers:get("content-length") ~= nil then
    headers:replace("content-length", tostring(length))
  end
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local text = headers:get(HEADER)
  headers:remove(HEADER)
  local path = headers:get(":path")
  local body = handle:body()
  if body == nil then
    return
  end
  local length = body:length()
  set_length(handle, length)
  if text == nil or length == 0 then
    return
  end
  local told = instruction_of(text)
  path = told.absent and match(path, "^[^?]*")
  local new = rewritten(body:getBytes(0, length), told, path and sub(path, -12) == "/completions")
  if new then
    body:setBytes(new) -- and the length with it, envoyproxy/envoy#18989
  elseif new == false and told.refuses then
    handle:respond({ [":status"] = "400", ["content-type"] = "application/json" }, REFUSAL)
  end
end
