"""Calls, from name to result: requests, retries, results, tracing.

Imports leases, the catalog and transport; never a client.
"""
