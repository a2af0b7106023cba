"""How client requests are done: their sessions, calls of tools, lease handles, approvals, media.

Imports sessions, `protocol` and definitions; never a transport.
"""
