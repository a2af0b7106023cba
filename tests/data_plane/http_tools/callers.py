"""Ready instances of servers with HTTP tools, and calls of their tools."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.conftest import BOUND

from leaseway.data_plane.core.calls.call import Outcome, PendingCall, ToolRequest
from leaseway.data_plane.kinds.http_api.instance import HttpInstance
from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.data_plane.kinds.opening import Opening
from leaseway.data_plane.kinds.values import read_references
from leaseway.data_plane.mcp.host import Host, http_client
from leaseway.spec.kinds.http_tools import HttpTool
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.errors import Fault


class RecordingListener:
    """Records closed instances."""

    def __init__(self) -> None:
        self.closed: list[Fault | None] = []

    def on_closed(self, instance: Any, fault: Fault | None) -> None:
        self.closed.append(fault)

    def on_tools_changed(self, instance: Any) -> None:
        raise AssertionError("its tools never change")

    def on_notification(self, instance: Any, method: str, params: bytes) -> None:
        raise AssertionError("it has no connection")

    def on_warning_cleared(self, instance: Any, reason: str) -> None:
        raise AssertionError("it has no warnings")

    def on_warning(self, instance: Any, reason: str, text: str) -> None:
        """Ignored."""

    def find_caller(self, instance: Any, method: str) -> None:
        raise AssertionError("it has no connection")

    def on_disconnected(self, instance: Any) -> None:
        raise AssertionError("it has no connection")


class Caller:
    """A ready instance, and calls of its tools."""

    def __init__(self, instance: HttpInstance, listener: RecordingListener) -> None:
        self.instance = instance
        self.listener = listener

    def start_call(
        self, name: str, meta: dict[str, object] | None = None, /, **arguments: Any
    ) -> tuple[PendingCall, asyncio.Future[Outcome]]:
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        request = ToolRequest(name, b"", json.dumps(arguments).encode(), meta)
        return self.instance.call(request, done.set_result), done

    async def outcome(
        self, name: str, meta: dict[str, object] | None = None, /, **arguments: Any
    ) -> Outcome:
        async with asyncio.timeout(BOUND):
            return await self.start_call(name, meta, **arguments)[1]

    async def fault(
        self, name: str, meta: dict[str, object] | None = None, /, **arguments: Any
    ) -> Fault:
        fault = (await self.outcome(name, meta, **arguments)).fault
        assert fault is not None
        return fault

    async def result(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        outcome = await self.outcome(name, **arguments)
        assert outcome.fault is None, outcome.fault
        result: dict[str, Any] = json.loads(outcome.payload)
        assert result.get("isError", False) is outcome.is_error
        return result

    async def text(self, name: str, /, **arguments: Any) -> str:
        (item,) = (await self.result(name, **arguments))["content"]
        text: str = item["text"]
        return text


def spec_of(url: str, *tools: HttpTool, **more: Any) -> ServerSpec:
    key = VariantKey("rest")
    return server_spec(key, "http_api", truely_stateless=True, url=url, http_tools=tools, **more)


@contextlib.asynccontextmanager
async def calling(
    spec: ServerSpec, environment: dict[str, str] | None = None
) -> AsyncIterator[Caller]:
    listener = RecordingListener()
    async with http_client() as http:
        host = Host(environment=environment or {}, http=http)
        opening = Opening(instance_id="w-rest-1", listener=listener, read_values=read_references)
        renderers = Renderers(host.environment)
        instance = HttpInstance(spec, host, opening, renderers)
        try:
            await instance.start()
            yield Caller(instance, listener)
        finally:
            await instance.close()
            renderers.close()
