"""What clients list: definitions in pages, and the URIs of MCP Apps. Pure.

Imports `results`, `eras`, `messages` and `handshake`.
"""
