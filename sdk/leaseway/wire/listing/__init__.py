"""Lists of tools, prompts and resources: definitions of servers, what callers get of them, pages.

Imports modules of `wire`; never a service or a plane.
"""
