"""Servers and tenants as Kubernetes resources: another source of layers, and their status.

`resources` and `status` are pure; only `api` imports the client library, which the extra
`kubernetes` installs. Never imports the plane.
"""
