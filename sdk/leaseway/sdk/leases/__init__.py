"""Leases of a client: acquires, renews and releases them, and detects lost ones.

`state`, `book` and `attempts` are pure; `manager` sends the requests that they decide on.
Imports transport; never the catalog or calls.
"""
