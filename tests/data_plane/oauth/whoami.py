"""Instances of a server whose one tool tells by which token it was called, and calls of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.data_plane.core.ports import InstancePort
from leaseway.data_plane.kinds.http_api.instance import HttpInstance
from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.data_plane.kinds.opening import Opening
from leaseway.data_plane.kinds.values import read_references
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.spec.kinds.http_tools import HttpTool
from leaseway.spec.model import ServerSpec

PATHS = {"streamable_http": "mcp", "sse": "sse", "websocket": "ws", "http_api": "api"}
"""Where the server is found, by transport."""
WHOAMI = HttpTool("whoami", "GET", "/whoami")


async def started(
    bench: Bench,
    spec: ServerSpec,
    environment: Mapping[str, str],
    tokens: Tokens | None = None,
) -> InstancePort:
    """Return an instance of a server of any transport that has started."""
    if spec.transport != "http_api":
        given = {} if tokens is None else {"tokens": tokens}
        return await bench.start(spec, environment, **given)
    host = Host(environment=environment, http=bench.http, tokens=tokens or Tokens())
    opening = Opening(instance_id="api", listener=bench, read_values=read_references)
    instance = HttpInstance(spec, host, opening, Renderers(environment))
    await instance.start()
    return instance


async def call(instance: InstancePort) -> Outcome:
    """Call the tool; return how that ended."""
    done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    instance.call(ToolRequest("whoami", instance.prepare("whoami"), b"{}"), done.set_result)
    async with asyncio.timeout(BOUND):
        return await done
