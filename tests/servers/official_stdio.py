"""The official package's low-level server over stdio, both eras."""

import anyio
from mcp.server.stdio import stdio_server
from official_tools import server


async def main():
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


anyio.run(main)
