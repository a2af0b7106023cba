"""What a message says, and what waits for its answer.

JSON-RPC lines and their codec, the eras of MCP, pending requests, and what a server asks of its
client. Imports nothing else of the protocol: neither a connection nor a transport.
"""
