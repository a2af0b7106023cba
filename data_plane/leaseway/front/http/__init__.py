"""MCP over Streamable HTTP: access checks, callers, connections, event streams.

It passes requests to `methods`. Only `app` imports it.
"""
