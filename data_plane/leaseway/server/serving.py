"""Serves a `BaseMCPServer` over stdio, with the official package's low-level server."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import traceback
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, redirect_stdout
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from leaseway.server.base import BaseMCPServer, ToolError, ToolResult
from leaseway.server.definitions import ServedTool, tools_by_name
from leaseway.server.faults import RAISED, HandlerExitError, contained_exits, describe, located
from leaseway.server.results import (
    call_and_list,
    call_result,
    check_json,
    list_items,
    resource_contents,
)

_MAX_QUEUED: Final = 64


class _Notifications:
    """Sends the notifications of one call in order; the newest 64 may wait."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._queue: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=_MAX_QUEUED)
        self._has_ended = False

    def add(self, method: str, params: Mapping[str, Any]) -> None:
        """Queue a notification; callable from any thread."""
        self._queue.append((method, params))
        self._loop.call_soon_threadsafe(self._wake.set)

    def end(self) -> None:
        """Let `send` return after the queued notifications."""
        self._has_ended = True
        self._wake.set()

    async def send(self) -> None:
        """Send notifications until `end`."""
        session = self._context.session
        while not self._has_ended:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                method, params = self._queue.popleft()
                if method == "notifications/progress":
                    await session.report_progress(**params)
                else:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", MCPDeprecationWarning)
                        await session.send_log_message(
                            **params, related_request_id=self._context.request_id
                        )


_call: contextvars.ContextVar[_Notifications | None] = contextvars.ContextVar("call", default=None)


class StdioNotifier:
    """The transport of a server; its methods may be called from any thread."""

    @property
    def transport_type(self) -> str:
        """The name of the transport."""
        return "stdio"

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Queue a notification for the current call; raises `InvalidValueError`."""
        check_json(params, "a notification")
        call = _call.get()
        if call is not None:
            call.add(method, params)


class _Handlers:
    """Handles MCP requests by calling a server's methods.

    Args:
        server: The server.
        folder: The folder of its module, for error locations.
    """

    def __init__(self, server: BaseMCPServer, folder: str | None) -> None:
        self._server = server
        self._folder = folder
        # Methods that are not async never run concurrently.
        self._one_thread = anyio.CapacityLimiter(1)
        self._tools: dict[str, ServedTool] = {}

    async def read_tools(self) -> dict[str, ServedTool]:
        """Read the server's tools again."""
        listed = await self.run(self._server.list_tools)
        self._tools = tools_by_name(listed, self._server.handle_tool)
        return self._tools

    async def list_tools(self, _context: Any, _params: Any) -> types.ListToolsResult:
        async with self._errors("list its tools"):
            tools = [tool.definition for tool in (await self.read_tools()).values()]
            result = types.ListToolsResult(tools=tools, ttl_ms=0, cache_scope="public")
            check_json(result, "a list of tools")
            return result

    async def call_tool(
        self, context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        async with self._errors("list its tools"):
            tool = self._tools.get(params.name) or (await self.read_tools()).get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name!r}.")
        try:
            returned = await self._run_in_call(context, tool.bind(params.arguments or {}))
            with located(tool.function):
                return call_result(returned, tool.metadata)
        except ToolError as error:
            return call_result(ToolResult(_sendable(error), is_error=True))
        except MCPError:
            raise
        except Exception as error:  # noqa: BLE001 - a tool raises what it likes
            text = f"The tool {params.name} failed: {self._log_error(error)}"
            return call_result(ToolResult(text, is_error=True))

    async def list_resources(self, _context: Any, _params: Any) -> types.ListResourcesResult:
        async with self._errors("list its resources"):
            listed = await self.run(self._server.list_resources)
            resources = [types.Resource.model_validate(vars(resource)) for resource in listed]
            result = types.ListResourcesResult(resources=resources, ttl_ms=0, cache_scope="public")
            check_json(result, "a list of resources")
            return result

    async def read_resource(
        self, context: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri, read = str(params.uri), self._server.read_resource
        async with self._errors(f"read {uri:.200}"):
            content = await self._run_in_call(context, partial(read, uri))
            listed = await self.run(self._server.list_resources)
            mime_type = next((item.mime_type for item in listed if item.uri == uri), None)
            with located(read):
                contents = [resource_contents(uri, content, mime_type)]
            result = types.ReadResourceResult(contents=contents, ttl_ms=0, cache_scope="private")
            check_json(result, "a text")
            return result

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a method of the server: on the loop if it is async, else in a thread."""
        if inspect.iscoroutinefunction(function):
            return await function()
        returned = await anyio.to_thread.run_sync(call_and_list, function, limiter=self._one_thread)
        if inspect.isasyncgen(returned):
            return await list_items(returned)
        return await returned if inspect.isawaitable(returned) else returned

    async def _run_in_call(self, context: Any, function: Callable[[], Any]) -> Any:
        """Run a handler and send its notifications, all of them before its result."""
        notifications = _Notifications(context)
        token = _call.set(notifications)
        sending = asyncio.create_task(notifications.send())
        try:
            with contained_exits():
                return await self.run(function)
        finally:
            _call.reset(token)
            notifications.end()
            with anyio.CancelScope(shield=True):
                await sending

    def _log_error(self, error: BaseException) -> str:
        """Log a traceback; return the error's location and message."""
        if isinstance(error, HandlerExitError):
            error = error.reason
        traceback.print_exception(error)
        description = _sendable(describe(error, self._folder))
        print(f"{RAISED}{description}", file=sys.stderr, flush=True)  # noqa: T201
        return description

    @asynccontextmanager
    async def _errors(self, action: str) -> AsyncIterator[None]:
        try:
            with contained_exits():
                yield
        except MCPError:
            raise
        except ToolError as error:
            raise MCPError(types.INVALID_PARAMS, _sendable(error)) from None
        except Exception as error:  # noqa: BLE001 - a tool raises what it likes
            text = f"The server could not {action}: {self._log_error(error)}"
            raise MCPError(types.INTERNAL_ERROR, text) from None


async def serve(
    build: Callable[[StdioNotifier], BaseMCPServer], folder: Callable[[], str | None]
) -> None:
    """Serve over stdio until standard input ends.

    Args:
        build: Builds the server. Its prints go to standard error, because MCP uses standard output.
        folder: Returns the folder of the server's module, once it is imported.
    """
    async with stdio_server() as (reader, writer):
        # Output that is not flushed when the connection ends must not reach stdout, either.
        with redirect_stdout(sys.stderr):
            server = build(StdioNotifier())
            handlers = _Handlers(server, folder())
            has_resources = type(server).list_resources is not BaseMCPServer.list_resources
            await handlers.run(server.start)
            try:
                await handlers.read_tools()  # report invalid tools before the first request
                protocol: Server[Any] = Server(
                    server.server_name,
                    version=server.server_version,
                    on_list_tools=handlers.list_tools,
                    on_call_tool=handlers.call_tool,
                    on_list_resources=handlers.list_resources if has_resources else None,
                    on_read_resource=handlers.read_resource if has_resources else None,
                )
                await protocol.run(reader, writer, protocol.create_initialization_options())
            finally:
                await handlers.run(server.stop)


def _sendable(text: object) -> str:
    """Return a text as valid Unicode; some file names are not."""
    return str(text).encode(errors="backslashreplace").decode()
