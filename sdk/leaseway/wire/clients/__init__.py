"""The MCP clients for which gateways call: what they declare, and how servers are greeted for them.

Imports modules of `wire`; never a service or a plane.
"""
