-- Names the tenant of a request by the SHA-256 of a header's value; see tenants.py, which puts NAMESPACE, KEY, HEADER
-- and SCHEME in front. A worker remembers the hashes of the values that it met.

local byte, char, gsub, lower = string.byte, string.char, string.gsub, string.lower
local rep, sub = string.rep, string.sub
local band, bnot, bxor, ror, rshift, tobit = bit.band, bit.bnot, bit.bxor, bit.ror, bit.rshift, bit.tobit
local floor = math.floor

local REMEMBERED = 10000

-- FIPS 180-4, section 4.2.2.
local K = {
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
  0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
  0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
  0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
  0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
  0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
}

-- Sections 5.1 and 6.2.
local function sha256(text)
  local size = #text
  text = text .. "\128" .. rep("\0", (55 - size) % 64) .. rep("\0", 4)
    .. char(floor(size / 0x200000) % 256, floor(size / 0x2000) % 256, floor(size / 0x20) % 256, size * 8 % 256)
  local h1, h2, h3, h4 = 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a
  local h5, h6, h7, h8 = 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19
  local w = {}
  for start = 1, #text, 64 do
    for t = 1, 16 do
      local at = start + 4 * (t - 1)
      local a, b, c, d = byte(text, at, at + 3)
      w[t] = a * 0x1000000 + b * 0x10000 + c * 0x100 + d
    end
    for t = 17, 64 do
      local one, two = w[t - 15], w[t - 2]
      local small = bxor(ror(one, 7), ror(one, 18), rshift(one, 3))
      local large = bxor(ror(two, 17), ror(two, 19), rshift(two, 10))
      w[t] = tobit(w[t - 16] + small + w[t - 7] + large)
    end
    local a, b, c, d, e, f, g, h = h1, h2, h3, h4, h5, h6, h7, h8
    for t = 1, 64 do
      local one = tobit(h + bxor(ror(e, 6), ror(e, 11), ror(e, 25)) + bxor(band(e, f), band(bnot(e), g)) + K[t] + w[t])
      local two = bxor(ror(a, 2), ror(a, 13), ror(a, 22)) + bxor(band(a, b), band(a, c), band(b, c))
      h, g, f, e, d, c, b, a = g, f, e, tobit(d + one), c, b, a, tobit(one + two)
    end
    h1, h2, h3, h4 = tobit(h1 + a), tobit(h2 + b), tobit(h3 + c), tobit(h4 + d)
    h5, h6, h7, h8 = tobit(h5 + e), tobit(h6 + f), tobit(h7 + g), tobit(h8 + h)
  end
  local hex = bit.tohex
  return hex(h1) .. hex(h2) .. hex(h3) .. hex(h4) .. hex(h5) .. hex(h6) .. hex(h7) .. hex(h8)
end

local known, count = {}, 0

function envoy_on_request(handle)
  local headers = handle:headers()
  local value = headers:get(HEADER)
  if value == nil then
    return
  end
  if headers:getNumValues(HEADER) > 1 then -- whoever reads it behind the proxy shall read what was counted
    value = headers:getAtIndex(HEADER, 0)
    headers:remove(HEADER)
    headers:add(HEADER, value)
  end
  local hash = known[value]
  if hash == nil then
    local key = value
    if SCHEME ~= "" and lower(sub(value, 1, #SCHEME)) == SCHEME then
      key = gsub(sub(value, #SCHEME + 1), "^[ \t]+", "") -- proxies drop those at the end
    end
    hash = sha256(key)
    if count >= REMEMBERED then
      known, count = {}, 0
    end
    known[value], count = hash, count + 1
  end
  handle:streamInfo():dynamicMetadata():set(NAMESPACE, KEY, hash)
end
