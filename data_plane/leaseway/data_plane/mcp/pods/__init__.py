"""Servers as images on Kubernetes: a pod for each instance, attached to over the API.

Imports the protocol's transports and the server's spec; the API's client library only when used.
"""
