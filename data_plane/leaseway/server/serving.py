"""Serves a `BaseMCPServer` over stdio, with the official package's low-level server."""

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
    Callable,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
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
from leaseway.server.definitions import async_like, tools_by_name
from leaseway.server.faults import (
    RAISED,
    HandlerExitError,
    InvalidValueError,
    contained_exits,
    describe,
    location_of,
)

_MAX_QUEUED: Final = 64
_MAX_PARTS: Final = 100_000


@dataclass
class _ActiveCall:
    """The call of the current context, with its queued notifications."""

    session: ServerSession
    request_id: types.RequestId | None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    queue: deque[tuple[str, Mapping[str, Any]]] = field(
        default_factory=partial(deque, maxlen=_MAX_QUEUED)
    )

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Queue a notification; callable from any thread."""
        self.queue.append((method, params))
        self.loop.call_soon_threadsafe(self.wake.set)

    async def send_until_cancelled(self) -> None:
        """Send notifications as they are queued."""
        while True:
            await self.wake.wait()
            self.wake.clear()
            with anyio.CancelScope(shield=True):
                await self.send_queued()

    async def send_queued(self) -> None:
        """Send the queued notifications, at most the newest 64."""
        while self.queue:
            method, params = self.queue.popleft()
            if method == "notifications/progress":
                await self.session.report_progress(**params)
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", MCPDeprecationWarning)
                    await self.session.send_log_message(
                        params["level"], params["data"], related_request_id=self.request_id
                    )


_call: contextvars.ContextVar[_ActiveCall | None] = contextvars.ContextVar("call", default=None)


class StdioNotifier:
    """The transport of a server; its methods may be called from any thread."""

    @property
    def transport_type(self) -> str:
        """The name of the transport."""
        return "stdio"

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Queue a notification for the current call; raises `InvalidValueError`."""
        _check_json(params, "a notification")
        call = _call.get()
        if call is not None:
            call.notify(method, params)


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
        self._tools: dict[str, Tool] = {}
        self._validators: dict[str, tuple[Mapping[str, Any], jsonschema_rs.Validator]] = {}

    async def tools(self) -> dict[str, Tool]:
        """Read the server's tools again."""
        self._tools = tools_by_name(await self.run(self._server.list_tools))
        return self._tools

    async def on_list_tools(self, _context: Any, _params: Any) -> types.ListToolsResult:
        async with self._errors("list its tools"):
            tools = [_definition(tool) for tool in (await self.tools()).values()]
            result = types.ListToolsResult(tools=tools, ttl_ms=0, cache_scope="public")
            _check_json(result, "a list of tools")
            return result

    async def on_call_tool(
        self, context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        async with self._errors("list its tools"):
            tool = self._tools.get(params.name) or (await self.tools()).get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name!r}.")
        arguments = dict(params.arguments or {})
        try:
            self._validate(tool, arguments)
            returned = await self._in_call(context, self._tool_call(tool, arguments))
            try:
                return _result(returned)
            except InvalidValueError as error:
                error.location = location_of(tool.function or self._server.handle_tool)
                raise
        except ToolError as error:
            return _text_result(_sendable(error), is_error=True)
        except MCPError:
            raise
        except Exception as error:  # noqa: BLE001 - a tool raises what it likes
            text = f"The tool {tool.name} failed: {self._log_error(error)}"
            return _text_result(text, is_error=True)

    async def on_list_resources(self, _context: Any, _params: Any) -> types.ListResourcesResult:
        async with self._errors("list its resources"):
            listed = await self.run(self._server.list_resources)
            resources = [
                types.Resource(
                    uri=resource.uri,
                    name=resource.name,
                    description=resource.description or None,
                    mime_type=resource.mime_type,
                    title=resource.title,
                )
                for resource in listed
            ]
            result = types.ListResourcesResult(resources=resources, ttl_ms=0, cache_scope="public")
            _check_json(result, "a list of resources")
            return result

    async def on_read_resource(
        self, context: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)

        def read() -> Any:
            return self._server.read_resource(uri)

        async with self._errors(f"read {uri:.200}"):
            method = self._server.read_resource
            content = await self._in_call(context, async_like(method, read))
            if isinstance(content, str):
                _check_json(content, "a text")
            listed = await self.run(self._server.list_resources)
        mime_type = next((item.mime_type for item in listed if item.uri == uri), None)
        return types.ReadResourceResult(
            contents=[_contents(uri, content, mime_type)], ttl_ms=0, cache_scope="private"
        )

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a method of the server: on the loop if it is async, else in a thread."""
        if inspect.iscoroutinefunction(function):
            return await function()
        outcome = await anyio.to_thread.run_sync(function, limiter=self._one_thread)
        return await outcome if inspect.isawaitable(outcome) else outcome

    def _tool_call(self, tool: Tool, arguments: dict[str, Any]) -> Callable[[], Any]:
        handle = tool.function or partial(self._server.handle_tool, tool.name)
        return async_like(handle, lambda: _list_of(handle(arguments)))

    async def _in_call(self, context: Any, function: Callable[[], Any]) -> Any:
        """Run a handler and send its notifications, all of them before its result."""
        call = _ActiveCall(context.session, context.request_id)
        token = _call.set(call)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(call.send_until_cancelled)
                try:
                    with contained_exits():
                        outcome: Any = await self.run(function)
                        if inspect.isasyncgen(outcome):
                            return await _list_of_async(outcome)
                        return outcome
                finally:
                    group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            _call.reset(token)
            with anyio.CancelScope(shield=True):
                await call.send_queued()

    def _validate(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        cached = self._validators.get(tool.name)
        if cached is None or cached[0] != tool.input_schema:
            cached = tool.input_schema, jsonschema_rs.validator_for(dict(tool.input_schema))
            self._validators[tool.name] = cached
        for error in cached[1].iter_errors(arguments):
            path = ".".join(str(part) for part in error.instance_path)
            subject = f"The argument {path} is wrong" if path else "The arguments are wrong"
            raise ToolError(f"{subject}: {error.message}.")

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
            await handlers.run(server.start)
            try:
                await handlers.tools()  # report invalid tools before the first request
                protocol = _protocol(server, handlers)
                await protocol.run(reader, writer, protocol.create_initialization_options())
            finally:
                await handlers.run(server.stop)


def _protocol(server: BaseMCPServer, handlers: _Handlers) -> Server[Any]:
    has_resources = type(server).list_resources is not BaseMCPServer.list_resources
    return Server(
        server.server_name,
        version=server.server_version,
        on_list_tools=handlers.on_list_tools,
        on_call_tool=handlers.on_call_tool,
        on_list_resources=handlers.on_list_resources if has_resources else None,
        on_read_resource=handlers.on_read_resource if has_resources else None,
    )


def _list_of(outcome: Any) -> Any:
    """Return the items of a generator as a list, and any other value unchanged."""
    if not inspect.isgenerator(outcome):
        return outcome
    parts = list(itertools.islice(outcome, _MAX_PARTS + 1))
    outcome.close()
    return _checked(parts)


async def _list_of_async(outcome: AsyncGenerator[Any, Any]) -> list[Any]:
    parts: list[Any] = []
    async with aclosing(outcome):
        async for part in outcome:
            parts.append(part)
            if len(parts) > _MAX_PARTS:
                break
    return _checked(parts)


def _checked(parts: list[Any]) -> list[Any]:
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
    result = _to_result(returned)
    # The writer would fail on an invalid result, and end the server.
    _check_json(result, "a result")
    return result


def _to_result(returned: Any) -> types.CallToolResult:
    if isinstance(returned, types.CallToolResult):
        return returned
    if isinstance(returned, ToolResult):
        return _text_result(returned.text, returned.structured, is_error=returned.is_error)
    if returned is None:
        return types.CallToolResult(content=[])
    if isinstance(returned, str):
        return _text_result(returned)
    if isinstance(returned, Mapping) and _is_mcp_result(returned):
        try:
            return types.CallToolResult.model_validate(dict(returned))
        except ValidationError as error:
            raise InvalidValueError(
                f"a result with 'content' that is not MCP's ({error!s:.300})"
            ) from None
    try:
        data = to_jsonable_python(returned)
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidValueError(
            f"a result that JSON can't hold, a {type(returned).__name__} ({error!s:.300})"
        ) from None
    return _text_result(text, data if isinstance(data, dict) else None)


def _check_json(value: Any, what: str) -> None:
    try:
        to_json(value)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidValueError(f"{what} that JSON can't hold ({error!s:.300})") from None


def _sendable(text: object) -> str:
    """Return a text as valid Unicode; some file names are not."""
    return str(text).encode(errors="backslashreplace").decode()


def _is_mcp_result(returned: Mapping[Any, Any]) -> bool:
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
