"""Commands that use tools as a service does: list, call, read, approve.

They go through the SDK and print what it answers; they import no plane.
"""
