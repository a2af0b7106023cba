"""Deadlines, durations and backoff, for both planes and the SDK.

Imports modules of `wire`; never a service or a plane.
"""
