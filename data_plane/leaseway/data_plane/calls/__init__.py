"""One tool call: admit it, find its instance, run it, end it exactly once.

Imports leases, instances and artifacts; never gRPC services or `sync`.
"""
