"""Commands that show operators a running system: status, listings, traces, events, audit.

They use the SDK or read audit files; they never import a plane.
"""
