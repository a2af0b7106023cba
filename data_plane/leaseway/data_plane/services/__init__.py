"""The gRPC services for callers: the exchange stream, unary calls, leases.

They convert frames and messages; calls and leases are handled in `calls` and `leases`.
"""
