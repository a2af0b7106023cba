"""A `BaseMCPServer` over stdio, on the official package's low-level server."""

from __future__ import annotations

import asyncio
import base64
import contextvars
import inspect
import itertools
import json
import sys
import traceback
import warnings
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import anyio.to_thread
import jsonschema_rs
import mcp_types as types
from mcp.server import Server
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from leaseway.server.base import BaseMCPServer, Tool, ToolError, ToolResult
from leaseway.server.definitions import tools_by_name
from leaseway.server.faults import (
    RAISED,
    EndedCallError,
    MisfitError,
    describe,
    held_to_its_call,
    place_of,
)

_MAX_WAITING: Final = 64
_MAX_PARTS: Final = 100_000


@dataclass
class _Call:
    """The call that a handler works on; it is told to the handler by a context variable."""

    session: ServerSession
    request_id: types.RequestId | None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: deque[tuple[str, Mapping[str, Any]]] = field(
        default_factory=lambda: deque(maxlen=_MAX_WAITING)
    )

    def leave(self, method: str, params: Mapping[str, Any]) -> None:
        """Leave a notification to be sent; callable in any thread."""
        self.waiting.append((method, params))
        self.loop.call_soon_threadsafe(self.wake.set)

    async def pump(self) -> None:
        """Send what is left, as it comes, until cancelled."""
        while True:
            await self.wake.wait()
            self.wake.clear()
            with anyio.CancelScope(shield=True):
                await self.send_waiting()

    async def send_waiting(self) -> None:
        """Send the notifications that a handler left, the newest 64 of them."""
        while self.waiting:
            method, params = self.waiting.popleft()
            if method == "notifications/progress":
                await self.session.report_progress(**params)
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", MCPDeprecationWarning)
                    await self.session.send_log_message(
                        params["level"], params["data"], related_request_id=self.request_id
                    )


_call: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("call", default=None)


class StdioNotifier:
    """What a server gets as its transport. Its methods may be called in any thread."""

    @property
    def transport_type(self) -> str:
        """The name of the transport."""
        return "stdio"

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Leave a notification for the call under way.

        Raises:
            MisfitError: JSON can't hold it.
        """
        _check_json(params, "a notification")
        call = _call.get()
        if call is not None:
            call.leave(method, params)


class _Adapter:
    """Answers the protocol's requests with what a server's methods return.

    Args:
        server: The server.
        home: The folder of its module, for tracebacks.
    """

    def __init__(self, server: BaseMCPServer, home: str | None) -> None:
        self._server = server
        self._home = home
        # A method that is not async may rely on nobody else being in the server.
        self._one_thread = anyio.CapacityLimiter(1)
        self._tools: dict[str, Tool] = {}
        self._validators: dict[str, tuple[Mapping[str, Any], jsonschema_rs.Validator]] = {}

    async def tools(self) -> dict[str, Tool]:
        """List the server's tools anew."""
        self._tools = tools_by_name(await self.run(self._server.list_tools))
        return self._tools

    async def on_list_tools(self, _context: Any, _params: Any) -> types.ListToolsResult:
        async with self._faults("list its tools"):
            tools = [_definition(tool) for tool in (await self.tools()).values()]
            listed = types.ListToolsResult(tools=tools, ttl_ms=0, cache_scope="public")
            _check_json(listed, "a list of tools")
            return listed

    async def on_call_tool(
        self, context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        async with self._faults("list its tools"):
            tool = self._tools.get(params.name) or (await self.tools()).get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name!r}.")
        arguments = dict(params.arguments or {})
        try:
            self._check(tool, arguments)
            returned = await self._in_call(context, self._called(tool, arguments))
            try:
                return _result(returned)
            except MisfitError as error:
                error.place = place_of(tool.function or self._server.handle_tool)
                raise
        except ToolError as refusal:
            return _text_result(_plain(refusal), is_error=True)
        except MCPError:
            raise
        except Exception as error:
            text = f"The tool {tool.name} failed: {self._traced(error)}"
            return _text_result(text, is_error=True)

    async def on_list_resources(self, _context: Any, _params: Any) -> types.ListResourcesResult:
        async with self._faults("list its resources"):
            listed = await self.run(self._server.list_resources)
            resources = [
                types.Resource(
                    uri=each.uri,
                    name=each.name,
                    description=each.description or None,
                    mime_type=each.mime_type,
                    title=each.title,
                )
                for each in listed
            ]
            found = types.ListResourcesResult(resources=resources, ttl_ms=0, cache_scope="public")
            _check_json(found, "a list of resources")
            return found

    async def on_read_resource(
        self, context: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)

        def read() -> Any:
            return self._server.read_resource(uri)

        async with self._faults(f"read {uri:.200}"):
            method = self._server.read_resource
            content = await self._in_call(context, _like(method, read))
            if isinstance(content, str):
                _check_json(content, "a text")
            listed = await self.run(self._server.list_resources)
        mime_type = next((each.mime_type for each in listed if each.uri == uri), None)
        return types.ReadResourceResult(
            contents=[_contents(uri, content, mime_type)], ttl_ms=0, cache_scope="private"
        )

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a method of the server: on the loop if it is async, else in the one thread."""
        if inspect.iscoroutinefunction(function):
            return await function()
        outcome = await anyio.to_thread.run_sync(function, limiter=self._one_thread)
        return await outcome if inspect.isawaitable(outcome) else outcome

    def _called(self, tool: Tool, arguments: dict[str, Any]) -> Callable[[], Any]:
        function = tool.function
        if function is not None:
            return _like(function, lambda: _drained(function(arguments)))
        handle = self._server.handle_tool
        return _like(handle, lambda: _drained(handle(tool.name, arguments)))

    async def _in_call(self, context: Any, function: Callable[[], Any]) -> Any:
        """Run a handler; what it notifies goes out while it works, and before its result."""
        call = _Call(context.session, context.request_id)
        token = _call.set(call)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(call.pump)
                try:
                    with held_to_its_call():
                        outcome: Any = await self.run(function)
                        drained = inspect.isasyncgen(outcome)
                        return await _drained_here(outcome) if drained else outcome
                finally:
                    group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            _call.reset(token)
            with anyio.CancelScope(shield=True):
                await call.send_waiting()

    def _check(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        kept = self._validators.get(tool.name)
        if kept is None or kept[0] != tool.input_schema:
            kept = tool.input_schema, jsonschema_rs.validator_for(dict(tool.input_schema))
            self._validators[tool.name] = kept
        for error in kept[1].iter_errors(arguments):
            where = ".".join(str(part) for part in error.instance_path)
            what = f"The argument {where} is wrong" if where else "The arguments are wrong"
            raise ToolError(f"{what}: {error.message}.")

    def _traced(self, error: BaseException) -> str:
        """Write a traceback to the log, and return what it comes to."""
        if isinstance(error, EndedCallError):
            error = error.reason
        traceback.print_exception(error)
        place = _plain(describe(error, self._home))
        print(f"{RAISED}{place}", file=sys.stderr, flush=True)  # noqa: T201
        return place

    @asynccontextmanager
    async def _faults(self, doing: str) -> AsyncIterator[None]:
        try:
            with held_to_its_call():
                yield
        except MCPError:
            raise
        except ToolError as refusal:
            raise MCPError(types.INVALID_PARAMS, _plain(refusal)) from None
        except Exception as error:
            text = f"The server could not {doing}: {self._traced(error)}"
            raise MCPError(types.INTERNAL_ERROR, text) from None


async def serve(
    make: Callable[[StdioNotifier], BaseMCPServer], home: Callable[[], str | None]
) -> None:
    """Serve over stdio until standard input ends.

    Args:
        make: Makes the server. What it prints goes to standard error: standard output is MCP's.
        home: Tells the folder of the server's module, once it is loaded, for tracebacks.
    """
    # Also what is printed and not yet flushed when the connection ends must not get there.
    async with stdio_server() as (reader, writer), _printing_to_stderr():
        server = make(StdioNotifier())
        adapter = _Adapter(server, home())
        await adapter.run(server.start)
        try:
            await adapter.tools()  # what is wrong with them is told before anyone asks
            protocol = _protocol(server, adapter)
            await protocol.run(reader, writer, protocol.create_initialization_options())
        finally:
            await adapter.run(server.stop)


@asynccontextmanager
async def _printing_to_stderr() -> AsyncIterator[None]:
    with redirect_stdout(sys.stderr):
        yield


def _protocol(server: BaseMCPServer, adapter: _Adapter) -> Server[Any]:
    lists = type(server).list_resources is not BaseMCPServer.list_resources
    return Server(
        server.server_name,
        version=server.server_version,
        on_list_tools=adapter.on_list_tools,
        on_call_tool=adapter.on_call_tool,
        on_list_resources=adapter.on_list_resources if lists else None,
        on_read_resource=adapter.on_read_resource if lists else None,
    )


def _like(method: Callable[..., Any], call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that is async if the method is."""
    if not inspect.iscoroutinefunction(method):
        return call

    async def run() -> Any:
        outcome: Awaitable[Any] = call()
        return await outcome

    return run


def _drained(outcome: Any) -> Any:
    """Return what a generator yields as a list, in the thread that called it."""
    if not inspect.isgenerator(outcome):
        return outcome
    parts = list(itertools.islice(outcome, _MAX_PARTS + 1))
    outcome.close()
    return _bounded(parts)


async def _drained_here(outcome: AsyncGenerator[Any, Any]) -> list[Any]:
    parts: list[Any] = []
    async with aclosing(outcome):
        async for part in outcome:
            parts.append(part)
            if len(parts) > _MAX_PARTS:
                break
    return _bounded(parts)


def _bounded(parts: list[Any]) -> list[Any]:
    if len(parts) > _MAX_PARTS:
        raise ToolError(f"The tool yields more than {_MAX_PARTS:,} parts.")
    return parts


def _definition(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=dict(tool.input_schema),
        output_schema=None if tool.output_schema is None else dict(tool.output_schema),
        annotations=types.ToolAnnotations.model_validate(tool.annotations)
        if tool.annotations
        else None,
    )


def _result(returned: Any) -> types.CallToolResult:
    result = _made(returned)
    # The writer would fail on it, and with it the server for everybody.
    _check_json(result, "a result")
    return result


def _made(returned: Any) -> types.CallToolResult:
    if isinstance(returned, types.CallToolResult):
        return returned
    if isinstance(returned, ToolResult):
        return _text_result(returned.text, returned.structured, is_error=returned.is_error)
    if returned is None:
        return types.CallToolResult(content=[])
    if isinstance(returned, str):
        return _text_result(returned)
    if isinstance(returned, Mapping) and _is_of_mcp(returned):
        try:
            return types.CallToolResult.model_validate(dict(returned))
        except ValidationError as error:
            raise MisfitError(
                f"a result with 'content' that is not MCP's ({error!s:.300})"
            ) from None
    try:
        data = to_jsonable_python(returned)
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    except (PydanticSerializationError, ValueError) as error:
        raise MisfitError(
            f"a result that JSON can't hold, a {type(returned).__name__} ({error!s:.300})"
        ) from None
    return _text_result(text, data if isinstance(data, dict) else None)


def _check_json(value: Any, what: str) -> None:
    try:
        to_json(value)
    except (PydanticSerializationError, ValueError) as error:
        raise MisfitError(f"{what} that JSON can't hold ({error!s:.300})") from None


def _plain(text: object) -> str:
    """Return a text that can be sent: of file names, some hold what is no character."""
    return str(text).encode(errors="backslashreplace").decode()


def _is_of_mcp(returned: Mapping[Any, Any]) -> bool:
    content = returned.get("content")
    return isinstance(content, list) and all(
        isinstance(block, Mapping) and "type" in block for block in content
    )


def _text_result(
    text: str, structured: Mapping[str, Any] | None = None, *, is_error: bool = False
) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=None if structured is None else dict(structured),
        is_error=is_error,
    )


def _contents(
    uri: str, content: Any, mime_type: str | None
) -> types.TextResourceContents | types.BlobResourceContents:
    if isinstance(content, bytes | bytearray):
        blob = base64.b64encode(content).decode()
        return types.BlobResourceContents(uri=uri, mime_type=mime_type, blob=blob)
    if isinstance(content, str):
        return types.TextResourceContents(uri=uri, mime_type=mime_type, text=content)
    print(f"read_resource({uri!r}) returned neither text nor bytes.", file=sys.stderr)  # noqa: T201
    raise MCPError(
        types.INTERNAL_ERROR,
        f"read_resource() returned a {type(content).__name__}; return text or bytes.",
    )
