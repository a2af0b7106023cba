"""Servers that are a Python class, in a process of `leaseway.server`."""
