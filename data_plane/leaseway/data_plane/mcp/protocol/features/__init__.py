"""MCP features over an open connection: handshake, listings, list changes, subscriptions, pings.

One file each. Imports the connection and `messages`; features do not import each other.
"""
