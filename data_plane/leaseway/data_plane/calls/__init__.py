"""Calls: admission, approval, execution, tracing and history. Each call ends exactly once.

Imports leases, instances and artifacts; never gRPC services or `sync`.
"""
