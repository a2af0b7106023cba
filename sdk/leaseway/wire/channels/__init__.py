"""Connections between processes: addresses, credentials, channels, servers, TLS.

Imports grpc and the leaves of `wire`; does not depend on any service.
"""
