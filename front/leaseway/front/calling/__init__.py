"""The context of client requests: which session they belong to, lease handles, approvals, media.

Imports sessions, messages, results and definitions; never a transport.
"""
