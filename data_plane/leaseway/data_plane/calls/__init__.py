"""A call: admits it, finds its instance, runs it, and ends it exactly once.

Imports leases, instances, artifacts and the audit; never `services` or `sync`.
"""
