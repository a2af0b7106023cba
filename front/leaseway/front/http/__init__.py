"""MCP over Streamable HTTP: access checks, callers, connections, event streams.

Passes requests to `methods`. Only `app` imports it.
"""
