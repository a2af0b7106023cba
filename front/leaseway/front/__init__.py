"""The MCP gateway ("front"): tools, prompts and resources of Leaseway for any MCP client.

Imports the SDK, `identity`, `telemetry` and `wire`; never a plane. Each MCP session is a session of
the SDK, so leases, retries and traces work as in any service.
"""
