"""MCP over any transport: messages, the connection, and the features that use it.

Defines the `Transport` interface. Never imports `http` or `process`.
"""
