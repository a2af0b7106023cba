"""Servers of MCP on a network: streamable HTTP, HTTP+SSE, websocket."""
