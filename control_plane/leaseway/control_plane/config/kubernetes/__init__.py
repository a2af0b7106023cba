"""Servers and tenants as Kubernetes resources: one more source of layers, and their status.

`resources` and `status` are pure; `api` alone knows the client library, which the extra
`kubernetes` brings. Nothing here may import the plane.
"""
