"""Streamable HTTP of both protocol eras: requests, responses, sessions and their renewal.

Imports `protocol`; never `process`.
"""
