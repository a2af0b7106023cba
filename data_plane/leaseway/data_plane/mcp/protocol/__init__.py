"""MCP over any transport: messages, the connection that exchanges them, the features above it.

The `Transport` seam is here. Knows neither HTTP nor processes.
"""
