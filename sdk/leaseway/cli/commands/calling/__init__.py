"""Commands that use tools as a service does: list, call, read, approve.

They call the SDK and print its results; they never import a plane.
"""
