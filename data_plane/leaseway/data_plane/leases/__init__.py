"""Leases of a worker: grants, renews and expires them, and queues requests for capacity.

Imports instances; never calls.
"""
