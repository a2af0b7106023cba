"""Serves a `BaseMCPServer` as a server of the official package, over stdio."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, redirect_stdout
from functools import partial
from itertools import islice
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError as McpToolError
from mcp.server.mcpserver.exceptions import UnexpectedToolError
from mcp.server.mcpserver.tools import ToolManager
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from pydantic_core import to_json

from leaseway.server.base import BaseMCPServer, ToolError
from leaseway.server.definitions import convert_tools
from leaseway.server.faults import (
    RAISED,
    DefinitionError,
    HandlerExitError,
    cause_of,
    contained_exits,
    describe,
    location_of,
)

_logger = logging.getLogger(__name__)
_MAX_QUEUED: Final = 64
_MAX_ITEMS: Final = 100_000


class _Notifications:
    """Sends the notifications of one request in order; the newest 64 may wait."""

    def __init__(self, context: ServerRequestContext[Any, Any]) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._queue: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=_MAX_QUEUED)
        self._task: asyncio.Task[None] | None = None

    def add(self, method: str, params: Mapping[str, Any]) -> None:
        """Queue a notification; callable from any thread."""
        self._queue.append((method, params))
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self.flush())

    async def flush(self) -> None:
        """Send the queued notifications."""
        async with self._sending:
            while self._queue:
                method, params = self._queue.popleft()
                session = self._context.session
                if method == "notifications/progress":
                    await session.report_progress(**params)
                else:
                    related = self._context.request_id
                    await session.send_log_message(**params, related_request_id=related)


_request: contextvars.ContextVar[_Notifications | None] = contextvars.ContextVar(
    "request", default=None
)


class StdioNotifier:
    """The transport of a server; its methods may be called from any thread.

    Which call a notification belongs to, only the context says: to guess it by the calls in flight
    could tell one caller of the work of another.
    """

    transport_type = "stdio"

    def __init__(self) -> None:
        self._has_warned = False

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Queue a notification for the current call; raises `ValueError` if it is not JSON."""
        to_json(params)
        request = _request.get()
        if request is not None:
            request.add(method, params)
        elif not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "A %s from the thread %r belongs to no call and is dropped, as are later ones. A"
                " thread that a tool starts gets its call by contextvars.copy_context().run.",
                method,
                threading.current_thread().name,
            )


class _Served(MCPServer[None]):
    """A server of the official package that calls the methods of a class.

    Args:
        server: The instance of the class.
        module: Its module, for error locations.
    """

    def __init__(self, server: BaseMCPServer, module: str) -> None:
        super().__init__(
            server.server_name,
            version=server.server_version,
            lifespan=self._started,
            subscriptions=False,
            middleware=[self._guard],
        )
        self._server = server
        self._module = module
        # Methods that are not async never run concurrently, and always in the same thread, to which
        # what they open may belong, such as a connection of sqlite3.
        self._one_thread = ThreadPoolExecutor(1, "server-thread")
        self._turn = asyncio.Lock()
        server.register(self)
        self._registered = self._tool_manager.list_tools()

    async def serve(self, reader: Any, writer: Any) -> None:
        """Serve one connection until it ends."""
        protocol = self._lowlevel_server
        await protocol.run(reader, writer, protocol.create_initialization_options())

    @asynccontextmanager
    async def _started(self, _: MCPServer[None]) -> AsyncIterator[None]:
        await self._run(self._server.start)
        try:
            await self.list_tools()  # report invalid tools before the first request
            yield
        finally:
            await self._run(self._server.stop)

    async def list_tools(self) -> list[types.Tool]:
        listed = await self._run(self._server.list_tools)
        tools = convert_tools(listed, self._server.handle_tool, self._run)
        self._tool_manager = ToolManager(tools=[*self._registered, *tools])
        return await super().list_tools()

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None = None
    ) -> types.CallToolResult | types.InputRequiredResult:
        if self._tool_manager.get_tool(name) is None:
            await self.list_tools()
        try:
            return await super().call_tool(name, arguments, context)
        except McpToolError as raised:
            error, tool = raised.__cause__ or raised, self._tool_manager.get_tool(name)
            cause = cause_of(error)
            is_crash = not isinstance(cause, ToolError | McpToolError)
            if tool is not None and (is_crash or isinstance(cause, UnexpectedToolError)):
                text = f"The tool {name} failed: {self._log(error, tool.fn)}"
            else:
                text = _sendable(cause)
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)

    async def list_resources(self) -> list[types.Resource]:
        own = await self._run(self._server.list_resources)
        listed = [types.Resource.model_validate(_fields(resource)) for resource in own]
        return [*listed, *await super().list_resources()]

    async def read_resource(
        self, uri: Any, context: Context[None, Any] | None = None
    ) -> Iterable[ReadResourceContents] | types.InputRequiredResult:
        read = self._server.read_resource
        if type(self._server).read_resource is BaseMCPServer.read_resource:
            return await super().read_resource(uri, context)
        content = await self._run(partial(read, str(uri)))
        if not isinstance(content, str | bytes):
            returned = type(content).__name__
            raise DefinitionError(
                f"{location_of(read)}read_resource() returned a {returned}; return text or bytes."
            )
        own = await self._run(self._server.list_resources)
        listed = [types.Resource.model_validate(_fields(resource)) for resource in own]
        mime_type = next((item.mime_type for item in listed if item.uri == str(uri)), None)
        return [ReadResourceContents(content, mime_type)]

    async def _run(self, function: Callable[[], Any]) -> Any:
        """Call a method of the server: on the loop if it is async, else in a thread."""
        with contained_exits():
            if inspect.iscoroutinefunction(function):
                return await function()
            returned = await self._in_thread(function)
            if inspect.isgenerator(returned):
                return _checked(
                    await self._in_thread(partial(list, islice(returned, _MAX_ITEMS + 1)))
                )
            if inspect.isasyncgen(returned):
                return await _items_of(returned)
            return await returned if inspect.isawaitable(returned) else returned

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        in_context = partial(contextvars.copy_context().run, _without_close, function)
        async with self._turn:
            running = asyncio.get_running_loop().run_in_executor(self._one_thread, in_context)
            with anyio.CancelScope(shield=True):  # the next method waits until this one has ended
                return await running

    async def _guard(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Handle a request: its notifications precede its result, and no error ends the server."""
        notifications = _Notifications(ctx)
        token = _request.set(notifications)
        try:
            result = await call_next(ctx)
            to_json(result)  # the writer would fail, and end the server
            return result
        except MCPError:
            raise
        except Exception as error:  # noqa: BLE001 - a server raises what it likes
            cause = cause_of(error)
            if isinstance(cause, ToolError):
                raise MCPError(types.INVALID_PARAMS, _sendable(cause)) from None
            text = f"The server could not answer {ctx.method}: {self._log(error)}"
            raise MCPError(types.INTERNAL_ERROR, text) from None
        finally:
            _request.reset(token)
            await notifications.flush()

    def _log(self, error: BaseException, function: Callable[..., Any] | None = None) -> str:
        """Log a traceback; return the error's location and message."""
        traceback.print_exception(error)
        description = _sendable(describe(error, self._module, function))
        print(f"{RAISED}{description}", file=sys.stderr, flush=True)  # noqa: T201
        return description


async def serve(build: Callable[[StdioNotifier], BaseMCPServer], module: str) -> None:
    """Serve over stdio until standard input ends.

    Args:
        build: Builds the server. Its prints go to standard error, because MCP uses standard output.
        module: The server's module, for error locations.
    """
    async with stdio_server() as (reader, writer):
        # Output that is not flushed when the connection ends must not reach stdout, either.
        with redirect_stdout(sys.stderr):
            await _Served(build(StdioNotifier()), module).serve(reader, writer)


def _without_close(function: Callable[[], Any]) -> Any:
    """Call a function for a coroutine that waits for the thread.

    `GeneratorExit` would close the coroutine, and no future can have a `StopIteration`.
    """
    try:
        return function()
    except (GeneratorExit, StopIteration) as error:
        raise HandlerExitError(type(error).__name__) from error


async def _items_of(generator: AsyncGenerator[Any, Any]) -> list[Any]:
    items: list[Any] = []
    async with aclosing(generator):
        async for item in generator:
            items.append(item)
            _checked(items)
    return items


def _checked(items: list[Any]) -> list[Any]:
    if len(items) > _MAX_ITEMS:
        raise ToolError(f"The tool yields more than {_MAX_ITEMS:,} parts.")
    return items


def _fields(resource: Any) -> Any:
    """Return the fields of a resource, which may be a mapping in MCP's form, as a tool may."""
    return resource if isinstance(resource, Mapping) else vars(resource)


def _sendable(text: object) -> str:
    """Return a text as valid Unicode; some file names are not."""
    return str(text).encode(errors="backslashreplace").decode()
