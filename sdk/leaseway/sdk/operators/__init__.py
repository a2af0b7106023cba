"""Requests of operators: servers, workers, leases, problems, logs, approvals, drain and revoke.

Imports transport and the runtime; never a client.
"""
