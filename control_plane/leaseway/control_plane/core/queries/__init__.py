"""Queries of callers: resolve names, find and place leases, suggest similar names.

Pure functions of the coordinator's state; they change only reservations.
"""
