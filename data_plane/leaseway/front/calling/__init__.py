"""The context of client requests: sessions, the relay to the SDK, lease handles, approvals.

It imports messages, results and definitions, and no transport.
"""
