"""Leases of one client: hold, renew, notice the loss.

Imports transport; knows no tool.
"""
