"""Leases of a worker: grants, renews and expires them, and keeps what only they list.

Imports instances; never calls.
"""
