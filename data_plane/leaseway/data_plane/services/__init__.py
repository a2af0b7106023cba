"""The gRPC services that callers use: the exchange stream, unary calls, leases.

They only convert messages; `calls` and `leases` do the work.
"""
