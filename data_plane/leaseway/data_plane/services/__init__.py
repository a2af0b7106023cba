"""The gRPC services that callers use: the exchange stream, unary calls, leases.

Thin: frames and messages in and out; the work is in `calls` and `leases`.
"""
