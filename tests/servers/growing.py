"""The official package's server over stdio, whose tools change within a session; both eras.

`login` adds `whoami` and takes `login` away; `change` defines `add` otherwise.
"""

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("growing")
state = {"user": ""}


async def tell(context):
    await context.notify_tools_changed()
    await context.request_context.session.send_tool_list_changed()


def whoami(prefix: str) -> str:
    """Say who has logged in."""
    return f"{prefix} {state['user']}"


def hidden() -> str:
    """Do what the configuration filters."""
    return "hidden"


def add_three(a: int, b: int, c: int) -> str:
    """Add three numbers."""
    return str(a + b + c)


@server.tool()
async def login(user: str, context: Context) -> str:
    """Log in, which adds tools."""
    state["user"] = user
    server.add_tool(whoami)
    server.add_tool(hidden, name="hidden_too")
    server.remove_tool("login")
    await tell(context)
    return "welcome"


@server.tool()
async def logout(context: Context) -> str:
    """Log out, which takes them away."""
    server.remove_tool("whoami")
    server.remove_tool("hidden_too")
    server.add_tool(login, name="login")
    await tell(context)
    return "goodbye"


@server.tool()
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
async def change(context: Context) -> str:
    """Let `add` take three numbers."""
    server.remove_tool("add")
    server.add_tool(add_three, name="add")
    await tell(context)
    return "changed"


server.run()
