"""Servers and tenants as Kubernetes resources: one more source of layers, and their status.

`resources` and `status` are pure; only `api` imports the client library, which the extra
`kubernetes` installs. Nothing here may import the plane.
"""
