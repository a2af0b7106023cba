"""The context of client requests: sessions, the relay to the SDK, lease handles, approvals.

Imports messages, results and definitions; never a transport.
"""
