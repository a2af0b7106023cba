"""MCP servers as Python classes, which workers run with `transport: python`.

Subclass `BaseMCPServer`. Importing this package loads only the standard library; the process of a
server (`python -m leaseway.server MODULE CLASS`) also imports the official MCP package and
`leaseway.telemetry`. Never imports the planes or the SDK.
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
