"""The table of a worker's leases, and sentences that explain why a lease does not exist.

Pure: time is a parameter. Imports nothing of the worker outside `core`.
"""
