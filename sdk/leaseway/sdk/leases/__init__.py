"""Leases of a client: acquires, renews and releases them, and detects lost ones.

Imports transport; never the catalog or calls.
"""
