"""Messages and pending requests: the JSON-RPC codec, the eras of MCP, server requests.

Imports nothing else of the protocol: neither a connection nor a transport.
"""
