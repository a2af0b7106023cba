"""The gRPC services for callers and operators: catalog, placement, admin.

Each handler checks a request, calls the coordinator through `Plane`, and builds the response.
"""
