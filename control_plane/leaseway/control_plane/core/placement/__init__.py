"""Which worker gets a lease, who waits for room, and how leases end.

Pure. Knows workers by id and load only.
"""
