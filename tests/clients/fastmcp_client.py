"""FastMCP's client: lists tools and calls `echo`; run in its own environment."""

import asyncio
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport


async def main(words):
    if words[0].startswith("http"):
        transport = StreamableHttpTransport(words[0])
    else:
        transport = StdioTransport(words[0], words[1:], keep_alive=False)
    async with Client(transport) as client:
        print(*sorted(tool.name for tool in await client.list_tools()))
        print((await client.call_tool("echo", {"text": "hello"})).content[0].text)


asyncio.run(main(sys.argv[1:]))
