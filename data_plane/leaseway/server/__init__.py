"""Write an MCP server as a Python class; a worker runs it with `transport: python`.

Subclass `BaseMCPServer`. Importing this package loads nothing beyond the standard library; what
runs a class (`python -m leaseway.server MODULE CLASS`) loads the official MCP package. It is a
process of its own, so it knows `leaseway.wire` and nothing of the planes or the SDK.
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
