"""Streams and channels to the planes: the exchange, requests of servers, errors from gRPC.

The only folder of the SDK that imports gRPC and protobuf.
"""
