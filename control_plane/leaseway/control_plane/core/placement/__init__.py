"""Placement of leases on workers, the queue of requests that wait for capacity, and lease ends.

Pure. Refers to workers by id and load only.
"""
