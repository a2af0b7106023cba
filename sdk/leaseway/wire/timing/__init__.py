"""Deadlines, durations, backoff and times to live, as both planes and the SDK count them.

It imports the leaves of `wire`, and no service or plane.
"""
