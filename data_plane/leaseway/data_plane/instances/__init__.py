"""Supervision of live MCP clients: pool, generations, spares, restarts, expiry.

Starts instances through the port in `core.ports`; imports nothing of calls or leases.
"""
