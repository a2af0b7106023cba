"""The gRPC services that callers and operators use: catalog, placement, admin.

Thin: each handler reads a request, asks `plane`, and writes the response.
"""
