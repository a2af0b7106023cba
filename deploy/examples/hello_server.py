"""A server as a Python class, which `python-server.yaml` runs."""

from __future__ import annotations

from leaseway.server import BaseMCPServer, ToolError, tool


class Hello(BaseMCPServer):
    """Greets people with the configured greeting, and counts them."""

    server_name = "hello"

    @tool(annotations={"readOnlyHint": False})
    def greet(self, who: str) -> dict[str, object]:
        """Greet a person, and return how many were greeted in this session."""
        if not who.strip():
            raise ToolError("'who' is empty; give a name to greet.")
        self.greeted = getattr(self, "greeted", 0) + 1
        return {"text": f"{self.config['greeting']}, {who}!", "greeted": self.greeted}
