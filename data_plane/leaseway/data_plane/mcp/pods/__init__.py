"""Servers as images on Kubernetes: creates a pod for each instance and attaches to it.

Imports the protocol's transport interface and the server's spec; the Kubernetes client library only
when it is used.
"""
