"""Connections between processes: addresses, credentials, channels, servers, TLS.

Imports grpc and modules of `wire`; never a service.
"""
