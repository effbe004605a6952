-- Counts what a request may cost in tokens; see token_cost.py, which puts DEFAULT_TOKENS, TOKENS_PER_BYTE,
-- TOKENS_MOST and CHOICES_MOST in front. Stands behind facts.lua, for which it wraps `publish`.

local LIMITS = { "max_tokens", "max_completion_tokens" }

-- The tokens, or nil and the fact that makes it impossible to tell.
local function count(facts, length)
  local most = 0
  for index = 1, #LIMITS do
    local name = LIMITS[index]
    local asked = facts[name]
    if asked ~= nil then
      if type(asked) ~= "number" or asked < 0 or asked >= TOKENS_MOST + 1 then
        return nil, name
      end
      if asked > most then
        most = asked
      end
    end
  end
  local choices = facts.n
  if choices == nil then
    choices = 1
  elseif type(choices) ~= "number" or choices < 1 or choices >= CHOICES_MOST + 1 then
    return nil, "n"
  end
  if most == 0 then
    most = DEFAULT_TOKENS
  end
  return floor(most * choices + length * TOKENS_PER_BYTE) + 1
end

local publish_facts = publish

function publish(metadata, facts, readable, length)
  local tokens, uncountable
  if readable then
    tokens, uncountable = count(facts, length)
  else
    uncountable = LIMITS[1]
  end
  if tokens then
    metadata:set(NAMESPACE, "tokens", format("%d", tokens))
  else
    metadata:set(NAMESPACE, "uncountable", uncountable)
  end
  publish_facts(metadata, facts, readable)
  return true
end
