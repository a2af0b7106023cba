"""MCP over Streamable HTTP: who may ask, requests answered in place, streams of events.

It hands what it cannot answer in place to `methods`; nothing outside of `app` imports it.
"""
