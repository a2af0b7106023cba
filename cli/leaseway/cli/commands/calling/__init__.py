"""Commands that use tools as a service does: list, call, read, approve.

They use the SDK only; they import no plane.
"""
