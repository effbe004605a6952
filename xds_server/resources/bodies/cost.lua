-- Counts what a request may cost in tokens; see token_cost.py, which puts DEFAULT_TOKENS, TOKENS_PER_BYTE,
-- TOKENS_MOST, CHOICES_MOST and COST_MOST in front. Stands behind facts.lua, for which it wraps `publish`.

local LIMITS = { "max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict" }

local max, min = math.max, math.min

-- How many answers are made for each prompt, or nil and the fact that makes it impossible to tell. `best_of` makes some
-- that nobody gets to see; 0 is allowed there.
local function choices_of(facts)
  local choices, best_of = facts.n, facts.best_of
  if choices == nil then
    choices = 1
  elseif type(choices) ~= "number" or choices < 1 or choices >= CHOICES_MOST + 1 then
    return nil, "n"
  end
  if best_of == nil then
    return choices
  elseif type(best_of) ~= "number" or best_of < 0 or best_of >= CHOICES_MOST + 1 then
    return nil, "best_of"
  end
  return max(choices, best_of)
end

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
  local choices, name = choices_of(facts)
  if choices == nil then
    return nil, name
  end
  if most == 0 then
    most = DEFAULT_TOKENS
  end
  local tokens = floor(most * choices * max(facts.prompt or 1, 1) + length * TOKENS_PER_BYTE) + 1
  return min(tokens, COST_MOST)
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
