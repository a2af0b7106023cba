"""Streamable HTTP, both protocol eras: requests, responses, sessions and their renewal.

Imports `protocol`, but nothing about processes.
"""
