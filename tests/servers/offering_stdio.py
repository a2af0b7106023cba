"""The server of `offering_tools` over stdio."""

import anyio
from mcp.server.lowlevel import NotificationOptions
from mcp.server.stdio import stdio_server
from offering_tools import server

NOTIFICATIONS = NotificationOptions(
    prompts_changed=True, resources_changed=True, tools_changed=True
)


async def main():
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options(NOTIFICATIONS))


anyio.run(main)
