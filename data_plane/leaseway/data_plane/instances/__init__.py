"""Supervises live MCP clients: pool, generations, spares, restarts, expiry.

Starts instances through the port in `core.ports`. Never imports `mcp`, calls or leases.
"""
