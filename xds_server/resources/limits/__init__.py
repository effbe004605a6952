"""Limits by requests and tokens: who is counted, where, and what becomes of what is too much."""
