"""Load clients that cost less than what they measure: HTTP/2 framed by hand, one epoll loop."""
