"""Connections to the planes: exchange streams, requests, server requests, faults from gRPC errors.

Imports only `validation` and `errors` of the SDK.
"""
