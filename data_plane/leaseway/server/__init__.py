"""MCP servers as Python classes, which workers run with `transport: python`.

Subclass `BaseMCPServer`. Importing this package imports only the standard library; the process that
runs a class (`python -m leaseway.server MODULE CLASS`) imports the official MCP package and
`leaseway.telemetry`. The package imports neither the planes nor the SDK.
"""

from leaseway.server.base import (
    BaseMCPServer,
    Notifier,
    Resource,
    Tool,
    ToolError,
    ToolResult,
    tool,
)

__all__ = ["BaseMCPServer", "Notifier", "Resource", "Tool", "ToolError", "ToolResult", "tool"]
