"""Watches files, folders and namespaces, and yields their whole content after each change.

The top layer of `config`: no other module of `config` imports it.
"""
