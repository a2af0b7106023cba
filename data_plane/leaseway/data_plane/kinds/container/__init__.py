"""Servers that are an image: in a container, or on Kubernetes in a pod."""
