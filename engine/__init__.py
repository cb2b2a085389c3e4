"""Tokens in, tokens out: requests, scheduling, paged KV memory, models and sampling."""
