"""The MCP gateway ("front"): tools, prompts and resources of Leaseway for any MCP client.

It is a user of the SDK: it imports the SDK, `identity`, `telemetry` and `wire`, and no plane. Each
MCP session is a session of the SDK, so leases, retries and traces work as for any service.
"""
