"""JSON-RPC over any transport: codec, handshake, listings, server requests, health.

The `Transport` seam is here. Knows neither HTTP nor processes.
"""
