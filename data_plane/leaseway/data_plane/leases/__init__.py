"""Leases of a worker: grant, renew, expire, and the wait queue for room.

Imports instances, and nothing of calls.
"""
