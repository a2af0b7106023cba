"""Operators' requests, shared by the admin service and the console.

`inspector` queries the workers; `commands` drains, revokes and records. May import the plane,
`leaseway.v1` and `leaseway.wire`.
"""
