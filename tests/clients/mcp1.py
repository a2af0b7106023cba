"""The client of `mcp` 1.x: lists tools and calls `echo`; run in its own environment."""

import asyncio
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client


async def main(words):
    if words[0].startswith("http"):
        transport = streamablehttp_client(words[0])
    else:
        transport = stdio_client(StdioServerParameters(command=words[0], args=words[1:]))
    async with transport as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        print(*sorted(tool.name for tool in (await session.list_tools()).tools))
        await session.call_tool("odd_t18", {})  # raises if the result does not fit its schema
        print((await session.call_tool("echo", {"text": "hello"})).content[0].text)


asyncio.run(main(sys.argv[1:]))
