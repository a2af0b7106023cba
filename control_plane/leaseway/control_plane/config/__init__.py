"""The configuration, from files and Kubernetes resources to typed specs (design.md).

Imports specs and `wire`; never the plane or services.
"""
