"""The transports: stdio, HTTP+SSE, websocket, and those that packages register.

Imports `protocol`, `http` and `process`.
"""
