"""What clients list: definitions in pages, searches of them, and the URIs of MCP Apps. Pure.

Imports `protocol`.
"""
