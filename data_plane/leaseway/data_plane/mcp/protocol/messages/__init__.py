"""The JSON-RPC codec, pending requests, MCP eras, and server requests.

Never imports a connection or a transport.
"""
