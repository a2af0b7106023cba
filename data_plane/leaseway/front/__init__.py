"""The MCP front: the tools, prompts and resources of a Leaseway for any MCP client.

It is one more user of the SDK: it imports the SDK, `wire` and `telemetry`, and no plane. Each MCP
session is a session of the SDK, so that leases, retries and traces work as for any service.
"""
