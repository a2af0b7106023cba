"""Servers as images on Kubernetes: a pod for each instance, attached over the API.

It imports the protocol's seam and what a server is; the API's client library only when it is used.
"""
