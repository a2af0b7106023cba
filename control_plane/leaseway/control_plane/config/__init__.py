"""The configuration, from files and Kubernetes resources to typed specs (DESIGN §§2-3).

Imports specs and `wire`; never the plane or services.
"""
