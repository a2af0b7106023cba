"""MCP connections: the protocol, negotiation, and instances. `kinds` say how to connect.

Calls use our own codec, bytes in and bytes out. Handshakes and listings use the official package's
`ClientSession` on the same connection (design.md). Only `kinds`, `app` and test doubles import it.
"""
