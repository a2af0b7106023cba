"""Deadlines, durations and backoff, for both planes and the SDK.

Imports the leaves of `wire`, and no service or plane.
"""
