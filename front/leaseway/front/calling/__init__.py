"""How client requests are done: their sessions, calls of tools, lease handles, approvals, media.

Imports sessions, messages, results and definitions; never a transport.
"""
