"""What a client's requests run in: sessions, relays, questions to the client, handles, approvals.

It imports messages, results and definitions, and knows no transport.
"""
