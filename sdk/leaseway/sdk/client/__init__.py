"""The asynchronous client and its session: what services use.

Thin: each method makes one request and hands it to `calls`, `leases` or `catalog`.
"""
