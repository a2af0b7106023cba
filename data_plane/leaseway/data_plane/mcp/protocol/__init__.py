"""MCP over any transport: messages, the connection, and the features above it.

Defines the `Transport` interface. Imports neither HTTP nor processes.
"""
