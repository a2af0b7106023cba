"""Calls, from name to result: requests, retries, results, tracing.

Imports leases, catalog and transport.
"""
