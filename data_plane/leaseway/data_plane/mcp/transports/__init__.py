"""The transports: stdio, HTTP+SSE, websocket, and those that other packages register.

Imports `protocol`, `http` and `process`.
"""
