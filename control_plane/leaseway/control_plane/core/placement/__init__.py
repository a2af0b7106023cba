"""Placement of leases on workers, the wait queue for capacity, and ended leases.

Pure. Refers to workers by id and load only; imports neither workers nor the catalog.
"""
