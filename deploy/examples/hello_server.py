"""A server that is a Python class; `python-server.yaml` runs it."""

from __future__ import annotations

from leaseway.server import BaseMCPServer, ToolError, tool


class Hello(BaseMCPServer):
    """Greets as it is configured, and counts."""

    server_name = "hello"

    @tool(annotations={"readOnlyHint": False})
    def greet(self, who: str) -> dict[str, object]:
        """Greet somebody, and tell how many were greeted in this session."""
        if not who.strip():
            raise ToolError("There is nobody to greet: 'who' is empty.")
        self.greeted = getattr(self, "greeted", 0) + 1
        return {"text": f"{self.config['greeting']}, {who}!", "greeted": self.greeted}
