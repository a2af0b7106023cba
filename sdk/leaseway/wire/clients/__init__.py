"""The MCP clients for which gateways call: what they declare and send, how servers are greeted.

Imports modules of `wire`; never a service or a plane.
"""
