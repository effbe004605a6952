"""What proxies read in the bodies of requests, and what they change: Lua programs and who asks for them."""
