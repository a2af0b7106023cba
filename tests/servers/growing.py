"""The official package's server over stdio, whose tools change within a session; both eras.

`login` adds `whoami` and takes `login` away; `change` defines `add` otherwise. `login` also adds
the prompt `portrait`, the resource `user://me` and the template `user://{name}/notes`, and takes
the prompt `welcome` and the resource `about://server` away.
"""

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.resources import TextResource

server = MCPServer("growing")
state = {"user": ""}


async def tell(context):
    session = context.request_context.session
    await context.notify_tools_changed()
    await session.send_tool_list_changed()
    await context.notify_prompts_changed()
    await session.send_prompt_list_changed()
    await context.notify_resources_changed()
    await session.send_resource_list_changed()


def whoami(prefix: str) -> str:
    """Say who has logged in."""
    return f"{prefix} {state['user']}"


def welcome() -> str:
    """Welcome a guest."""
    return "Welcome, guest."


def portrait() -> str:
    """Describe who has logged in."""
    return f"Describe {state['user']}."


def offer_to_guests():
    server.add_prompt(Prompt.from_function(welcome))
    server.add_resource(TextResource(uri="about://server", name="about", text="a server"))


def offer_to_user(user):
    server.remove_prompt("welcome")
    server.add_prompt(Prompt.from_function(portrait))
    server.add_prompt(Prompt.from_function(portrait, name="hidden_portrait"))
    del server._resource_manager._resources["about://server"]
    server.add_resource(TextResource(uri="user://me", name="me", text=user))

    @server.resource("user://{name}/notes")
    def notes(name: str) -> str:
        return f"notes of {name}"


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
    offer_to_user(user)
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


offer_to_guests()
server.run()
