"""Code that the SDK and both planes share: errors on the wire, framing, bounds, serving.

Imports only `leaseway.v1`. It is not public API and does not depend on leases or the registry.
"""
