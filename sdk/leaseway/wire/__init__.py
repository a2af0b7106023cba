"""Code that the SDK and both planes share: errors on the wire, framing, bounds, serving.

Nothing here depends on leases or on the registry; nothing here is public API.
"""
