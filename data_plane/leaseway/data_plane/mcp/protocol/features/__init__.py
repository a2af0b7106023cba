"""What a client does over an open connection, a file for each feature of MCP.

Handshake, listings and their changes, subscriptions to resources, signs of life. Imports the
connection and `messages`; no file here imports another one.
"""
