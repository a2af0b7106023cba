"""The gRPC services for callers and operators: catalog, placement, admin.

Each handler checks the request, calls the coordinator through `Plane`, and builds the response.
Decisions belong to `core`.
"""
