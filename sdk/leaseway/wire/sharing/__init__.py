"""How callers share what has a limit: how much each may use, whose turn it is, who gives way.

Imports modules of `wire`; never a service or a plane. Pure.
"""
