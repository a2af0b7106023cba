"""A high-level server of the official package, whose tool elicits input during a call."""

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("eliciting")


class Person(BaseModel):
    name: str


@server.tool()
async def greet(ctx: Context) -> str:
    """Ask who is there."""
    answer = await ctx.elicit("Who?", Person)
    return f"Hello, {answer.data.name}." if answer.action == "accept" else answer.action


server.run()
