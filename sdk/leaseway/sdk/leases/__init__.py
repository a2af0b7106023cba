"""The lease client: acquire, keep alive, release, and detect lost leases.

Imports transport; does not depend on tools.
"""
