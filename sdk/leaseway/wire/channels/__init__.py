"""Connections between processes: where, with which credentials, how they are opened and served.

It imports grpc and the leaves of `wire`, and knows no service.
"""
