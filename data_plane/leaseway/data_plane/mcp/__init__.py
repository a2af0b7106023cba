"""MCP connections: processes, transports, negotiation, and instances.

Calls use our own codec, bytes in and bytes out. Handshakes and listings use the official package's
`ClientSession` on the same connection (design.md). Only `app` and test doubles import it.
"""
