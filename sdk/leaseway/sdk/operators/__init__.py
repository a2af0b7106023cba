"""Requests of operators: servers, workers, leases, problems, logs, approvals, drain and revoke."""
