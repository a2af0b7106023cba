"""Servers of a transport that another package registers."""
