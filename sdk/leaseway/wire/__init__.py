"""What the SDK and both planes share: errors on the wire, framing, bounds, serving.

Nothing here knows what a lease or a registry is; nothing here is public API.
"""
