"""Features of MCP over an open connection, one file each.

Handshake, listings, list changes, subscriptions to resources, pings. Imports the connection and
`messages`; no file here imports another one.
"""
