"""Leases of a worker: grant, renew, expire, and the queue of those who wait for room.

Imports instances; knows no call.
"""
