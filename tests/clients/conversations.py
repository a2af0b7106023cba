"""FastMCP's client: two conversations, each with its own knowledge graph."""

import asyncio
import json
import sys

from fastmcp import Client


async def main(url):
    async with Client(url) as one, Client(url) as other:
        named = {"a": one, "b": other}
        for name, client in named.items():
            entity = {"name": name, "entityType": "letter", "observations": []}
            await client.call_tool("create_entities", {"entities": [entity]})
        graphs = [await client.call_tool("read_graph", {}) for client in named.values()]
        print(json.dumps([names(graph.structured_content) for graph in graphs]))


def names(graph):
    return [entity["name"] for entity in graph["entities"]]


asyncio.run(main(sys.argv[1]))
