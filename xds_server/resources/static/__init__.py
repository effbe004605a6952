"""Answers that proxies give by themselves."""
