"""The worker: runs MCP servers, grants leases on them and executes calls.

Imports the shared packages (`identity`, `spec`, `telemetry`, `vault`, `templates`, `server`,
`wire`); never the SDK, the control plane or the command line.
"""
