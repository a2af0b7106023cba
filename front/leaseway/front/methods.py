"""The MCP methods, answered through the SDK: the same code for every transport and version.

A handler gets one request and returns its result as JSON, or raises `JsonRpcError`. The transports
deal with headers, streams and session ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND
from msgspec import structs
from opentelemetry import context as otel_context

from leaseway.front.calling import approvals
from leaseway.front.calling.handles import (
    ACQUIRE,
    HandleListing,
    HandleTable,
    acquire,
    handle_tool,
    release,
)
from leaseway.front.calling.listener import Listener
from leaseway.front.calling.media import (
    MEDIA_KEY,
    MediaMode,
    artifact_ref,
    link_media,
    parse_media_mode,
    read_artifact,
)
from leaseway.front.calling.sessions import LiveSession, ResourceSubscription
from leaseway.front.calling.suspended_calls import SuspendedCalls, is_suspended
from leaseway.front.catalog import CatalogCache
from leaseway.front.eras import to_2025_11_25
from leaseway.front.handshake import discover_result, no_instructions
from leaseway.front.messages import (
    CallParams,
    CompleteParams,
    JsonRpcError,
    ListenParams,
    ListParams,
    Message,
    ParamsT,
    PromptParams,
    ResourceParams,
    ResumableParams,
    SetLevelParams,
    decode,
    encode,
    notification,
    parse_params,
)
from leaseway.front.results import adapt_result, error_result, rpc_error
from leaseway.front.tool_search import CALL, DESCRIBE, SEARCH, ToolSearch, search_listing
from leaseway.sdk import (
    AsyncClient,
    AsyncSession,
    ConfirmationRequired,
    LeasewayError,
    Tool,
    ToolResult,
)
from leaseway.sdk.relay import (
    McpRequest,
    call_tool,
    prompt_completion,
    prompt_request,
    read_request,
    send_request,
    template_completion,
)
from leaseway.wire.bounds import MAX_META
from leaseway.wire.channels.trace_context import TRACEPARENT, TRACESTATE, context_from
from leaseway.wire.messages.mcp import LOG_LEVELS, is_reserved_meta

_EMPTY: Final = b"{}"
_CHANGED: Final = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "templates": "resources",
}
"""The `list_changed` notification for each kind of list."""

_MAX_LISTENED: Final = 256
"""Resources in one `subscriptions/listen`."""
_MAX_PROBLEMS: Final = 3
"""Configuration errors that are shown to a client without tools."""


@dataclass(slots=True)
class Request:
    """One request of a client, in flight.

    Attributes:
        message: The JSON-RPC message.
        listener: Sends notifications and server requests to the client.
        modern: Whether the client speaks 2026-07-28 or newer.
        scope: The server that the client sees; empty means all.
        session: The client's session; None for a modern client without a lease handle.
        meta: The request's `_meta`.
        handles: Resolves lease handles; None in protocol versions with sessions.
        media: How the client wants images and audio; None means the default.
    """

    message: Message
    listener: Listener
    modern: bool
    scope: str
    session: LiveSession | None
    meta: dict[str, Any] = field(default_factory=dict)
    handles: HandleTable | None = None
    media: MediaMode | None = None


Handler = Callable[["Methods", Request], Awaitable[bytes]]


def _list_handler(kind: str) -> Handler:
    async def list_page(methods: Methods, request: Request) -> bytes:
        params = read_params(request, ListParams)
        listing = await methods.catalog.listing(kind, request.scope)
        return listing.page(params.cursor, modern=request.modern)

    return list_page


def changed_notification(kind: str, meta: dict[str, Any] | None = None) -> bytes:
    params = encode({"_meta": meta}) if meta else _EMPTY
    return notification(f"notifications/{_CHANGED[kind]}/list_changed", params)


class Methods:
    """Handles requests for one tenant.

    Args:
        client: The tenant's client.
        search: Whether to list three search tools instead of all tools.
        media: How clients get images and audio by default.
        handles: Whether to list the tools for lease handles to modern clients.
        shows_problems: Whether the client runs this Leaseway, so that it is shown configuration
            errors if there are no tools.
        instructions: Returns what clients are told about this Leaseway; may be empty.
        control_plane: The digest of the control plane's address (`ancestors`), or empty.
        ending: Set when the front shuts down, which ends `subscriptions/listen` streams.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        search: bool = False,
        media: MediaMode = "inline",
        handles: bool = True,
        shows_problems: bool = False,
        instructions: Callable[[], str] = no_instructions,
        control_plane: str = "",
        ending: asyncio.Event | None = None,
    ) -> None:
        self.client = client
        self._instructions = instructions
        self._control_plane = control_plane
        self.catalog = CatalogCache(client)
        self._ending = ending or asyncio.Event()
        self._media = media
        self._shows_problems = shows_problems
        self._search = ToolSearch() if search else None
        self._handles = HandleListing() if handles else None
        self._suspended = SuspendedCalls()

    async def handle(self, request: Request) -> bytes:
        """Return the result of a request as JSON.

        Raises:
            JsonRpcError: The request failed, or its method is unknown.
        """
        method = request.message.method or ""
        handler = (_MODERN if request.modern else _LEGACY).get(method)
        if handler is None:
            raise JsonRpcError(METHOD_NOT_FOUND, f"Unknown method {method[:100]!r}.")
        try:
            return await handler(self, request)
        except LeasewayError as error:
            raise rpc_error(error) from None

    async def tool(self, name: str, scope: str) -> Tool | None:
        listing = await self.catalog.listing("tools", scope)
        tool: Tool | None = listing.items.get((name,))
        return tool

    async def _ping(self, _request: Request) -> bytes:
        return _EMPTY

    async def _discover(self, request: Request) -> bytes:
        read_params(request, ListParams)
        return discover_result(self._instructions(), self._control_plane)

    async def _list_tools(self, request: Request) -> bytes:
        params = read_params(request, ListParams)
        shown = search_listing() if self._search is not None else None
        handles = self._handles if request.handles is not None else None
        if shown is None or handles is not None or self._shows_problems:
            listing = await self.catalog.listing("tools", request.scope)
            if self._shows_problems and not listing.keys:
                await self._check_problems()
            shown = shown or listing
            if handles is not None:
                shown = handles.add_tools(listing, request.scope, shown)
        return shown.page(params.cursor, modern=request.modern)

    async def _check_problems(self) -> None:
        """Raise `JsonRpcError` with the errors of the configuration and its servers, if any."""
        errors = [item for item in await self.client.problems() if item.severity == "error"]
        if errors:
            shown = " ".join(error.message for error in errors[:_MAX_PROBLEMS])
            hidden = len(errors) - _MAX_PROBLEMS
            rest = f" There are {hidden} more errors." if hidden > 0 else ""
            raise JsonRpcError(
                INTERNAL_ERROR,
                f"There is no tool: {shown}{rest} The file is read again when it changes.",
                {"reason": errors[0].reason, "started": "no"},
            )

    async def _call_tool(self, request: Request) -> bytes:
        params = read_params(request, CallParams)
        _pass_input_responses(request, params)
        if self._search is not None and params.name in (SEARCH, DESCRIBE):
            listing = await self.catalog.listing("tools", request.scope)
            search = self._search.search if params.name == SEARCH else self._search.describe
            return adapt_result(search(listing, params.arguments_json()), modern=request.modern)
        if self._search is not None and params.name == CALL:
            answers = {"responses": params.responses, "state": params.state}
            params = structs.replace(self._search.called_tool(params.arguments_json()), **answers)
        return await self._suspendable(request, params, self._call(request, params))

    def _suspendable(
        self, request: Request, params: ResumableParams, call: Coroutine[Any, Any, bytes]
    ) -> Coroutine[Any, Any, bytes]:
        """Let a modern client get server requests as `input_required` results."""
        if not (request.modern and request.listener.answers):
            return call
        if params.state is None or not is_suspended(params.state):
            return self._suspended.start(request.listener, call)
        call.close()  # the suspended call continues instead
        return self._suspended.resume(request.listener, params.state, bytes(params.responses))

    async def _call(self, request: Request, params: CallParams) -> bytes:
        arguments = params.arguments_json()
        tool = await self.tool(params.name, request.scope)
        table = request.handles if self._handles is not None else None
        if tool is None and table is not None and (own_tool := handle_tool(params.name)):
            call_handle_tool = acquire if own_tool == ACQUIRE else release
            session = request.session
            if session is not None and not session.id:
                session = None  # the session of a stdio connection is no handle
            result_json = await call_handle_tool(table, session, request.scope, arguments)
            return adapt_result(result_json, modern=request.modern)
        if tool is None and request.scope:
            tool = (await self.catalog.fresh("tools", request.scope)).items.get((params.name,))
            if tool is None:
                raise JsonRpcError(
                    INVALID_PARAMS,
                    f"Server '{request.scope}' has no tool '{params.name[:100]}'; tools/list "
                    "returns its tools.",
                )
        # Approvals and artifacts belong to one session, so that it must outlast the request.
        is_lasting = request.session is not None or (tool is not None and tool.shared)
        self._choose_media(request, is_lasting)
        if request.modern and approvals.is_answer(params.state):
            await approvals.apply_answer(self.client, params.state or "", bytes(params.responses))
            request.listener.input = b""
        try:
            try:
                result = await self._relay(request, tool, params.name, arguments)
            except ConfirmationRequired as error:
                if not is_lasting or not approvals.can_ask(request.listener, error):
                    raise
                if request.modern:
                    return await approvals.input_required(self.client, error)
                await approvals.ask_user(self.client, request.listener, error)
                result = await self._relay(request, tool, params.name, arguments)
        except LeasewayError as error:
            correctable = error_result(error)
            if correctable is None:
                raise
            return adapt_result(correctable, modern=request.modern)
        payload = _payload_of(result, request)
        if not request.modern:
            is_wrapped = tool is not None and to_2025_11_25.is_wrapped(tool.output_schema)
            payload = to_2025_11_25.tool_result(payload, wrapped=is_wrapped)
        return adapt_result(payload, modern=request.modern)

    def _choose_media(self, request: Request, is_lasting: bool) -> None:
        """Keep images and audio as artifacts if the client wants links and can read them later."""
        if is_lasting and (request.media or self._media) == "links":
            request.listener.inline_media = False

    async def _relay(
        self, request: Request, tool: Tool | None, name: str, arguments: bytes
    ) -> ToolResult:
        if request.session is not None and TRACEPARENT not in request.meta:
            # The common case, without context managers.
            return await call_tool(request.session.sdk, name, arguments, request.listener)
        with _traced(request.meta):
            async with self._in_session(request, tool) as session:
                return await call_tool(session, name, arguments, request.listener)

    async def _get_prompt(self, request: Request) -> bytes:
        params = read_params(request, PromptParams)
        _pass_input_responses(request, params)
        self._choose_media(request, request.session is not None)
        mcp_request = prompt_request(params.name, params.arguments, request.scope or None)
        return await self._suspendable(request, params, self._send(request, mcp_request))

    async def _read(self, request: Request) -> bytes:
        params = read_params(request, ResourceParams)
        _pass_input_responses(request, params)
        if (ref := artifact_ref(params.uri)) is not None:
            reader = request.session.sdk if request.session is not None else self.client
            contents = await read_artifact(reader, params.uri, ref, modern=request.modern)
            return adapt_result(contents, modern=request.modern, cached=True)
        mcp_request = read_request(params.uri, request.scope or None)
        try:
            call = self._send(request, mcp_request, cached=True)
            return await self._suspendable(request, params, call)
        except LeasewayError as error:
            raise rpc_error(error, uri=params.uri) from None

    async def _complete(self, request: Request) -> bytes:
        params = read_params(request, CompleteParams)
        context = params.context.arguments if params.context is not None else None
        rest = (params.argument.name, params.argument.value, context, request.scope or None)
        ref = params.ref
        if ref.type == "ref/prompt" and ref.name is not None:
            return await self._send(request, prompt_completion(ref.name, *rest))
        if ref.type == "ref/resource" and ref.uri is not None:
            return await self._send(request, template_completion(ref.uri, *rest))
        text = "`ref` must be a ref/prompt with a name or a ref/resource with a uri."
        raise JsonRpcError(INVALID_PARAMS, text)

    async def _send(
        self, request: Request, mcp_request: McpRequest, *, cached: bool = False
    ) -> bytes:
        with _traced(request.meta):
            async with self._in_session(request, None) as session:
                result = await send_request(session, mcp_request, request.listener)
        return adapt_result(_payload_of(result, request), modern=request.modern, cached=cached)

    async def _set_level(self, request: Request) -> bytes:
        level = read_params(request, SetLevelParams).level
        if level not in LOG_LEVELS:
            text = f"The log level must be one of {', '.join(LOG_LEVELS)}."
            raise JsonRpcError(INVALID_PARAMS, text)
        assert request.session is not None
        request.session.log_level = level
        return _EMPTY

    async def _subscribe(self, request: Request) -> bytes:
        uri = read_params(request, ResourceParams).uri
        assert request.session is not None
        await request.session.subscribe(uri)
        return _EMPTY

    async def _unsubscribe(self, request: Request) -> bytes:
        uri = read_params(request, ResourceParams).uri
        assert request.session is not None
        await request.session.unsubscribe(uri)
        return _EMPTY

    async def _listen(self, request: Request) -> bytes:
        """Send change notifications until the client cancels its request, or the front ends."""
        filters = read_params(request, ListenParams).notifications
        if len(filters.resource_subscriptions) > _MAX_LISTENED:
            text = f"A stream has at most {_MAX_LISTENED} resource subscriptions."
            raise JsonRpcError(INVALID_PARAMS, text)
        meta = {SUBSCRIPTION_ID_META_KEY: decode(request.message.request_id)}
        send = request.listener.send
        kinds = {
            "tools": filters.tools_list_changed,
            "prompts": filters.prompts_list_changed,
            "resources": filters.resources_list_changed,
            "templates": filters.resources_list_changed,
        }

        def on_list_changed(kind: str, servers: frozenset[str]) -> None:
            if kinds[kind] and (not request.scope or request.scope in servers):
                send(changed_notification(kind, meta))

        def on_resource_updated(uri: str) -> None:
            params = encode({"uri": uri, "_meta": meta})
            send(notification("notifications/resources/updated", params))

        async with contextlib.AsyncExitStack() as stack:
            for kind in [kind for kind, is_enabled in kinds.items() if is_enabled]:
                await self.catalog.listing(kind)  # changes are found by comparing with the cache
            stack.callback(self.catalog.subscribe(on_list_changed))
            session = request.session.sdk if request.session is not None else self.client
            for uri in dict.fromkeys(filters.resource_subscriptions):
                subscription = ResourceSubscription(
                    session, uri, request.scope or None, on_resource_updated
                )
                stack.push_async_callback(subscription.stop)
                await subscription.confirmed()
            params = encode({"notifications": filters, "_meta": meta})
            send(notification("notifications/subscriptions/acknowledged", params))
            await self._ending.wait()
        return encode({"resultType": "complete", "_meta": meta})

    @contextlib.asynccontextmanager
    async def _in_session(
        self, request: Request, tool: Tool | None
    ) -> AsyncIterator[AsyncSession | AsyncClient]:
        """Open the SDK session of a request: its client's, none for a shared tool, or a new one."""
        if request.session is not None:
            yield request.session.sdk
        elif tool is not None and tool.shared:
            yield self.client
        else:
            async with self.client.session(f"mcp-request-{secrets.token_hex(12)}") as session:
                yield session


def read_params(request: Request, kind: type[ParamsT]) -> ParamsT:
    """Parse a request's params and apply their `_meta`: progress, log level, media.

    Raises:
        JsonRpcError: They do not match the method's schema.
    """
    params = parse_params(request.message, kind)
    meta = params.meta
    if meta:
        request.meta = meta
        listener = request.listener
        if MEDIA_KEY in meta:
            request.media = parse_media_mode(meta[MEDIA_KEY])
        if "progressToken" in meta:
            listener.token = encode(meta["progressToken"])
            listener.wants_progress = True
        if request.modern:
            level = meta.get(LOG_LEVEL_META_KEY)
            listener.log_level = level if level in LOG_LEVELS else ""
        relayed = {key: value for key, value in meta.items() if not is_reserved_meta(key)}
        if relayed:
            listener.meta = encode(relayed)
            if len(listener.meta) > MAX_META:
                raise JsonRpcError(INVALID_PARAMS, f"`_meta` has at most {MAX_META} bytes.")
    return params


def _payload_of(result: ToolResult, request: Request) -> bytes:
    """Return a result's payload, with links to artifacts if the client wants links."""
    return result.payload if request.listener.inline_media else link_media(result.payload)


def _pass_input_responses(request: Request, params: ResumableParams) -> None:
    """Pass a modern client's answers to an `input_required` result on to the server."""
    if not request.modern:
        return
    parts = []
    if bytes(params.responses):
        parts.append(b'"inputResponses":%b' % bytes(params.responses))
    if params.state is not None:
        parts.append(b'"requestState":%b' % encode(params.state))
    if parts:
        request.listener.input = b"{%b}" % b",".join(parts)


@contextlib.contextmanager
def _traced(meta: dict[str, Any]) -> Iterator[None]:
    """Continue the client's trace in the block if `_meta` has a traceparent."""
    traceparent, tracestate = meta.get(TRACEPARENT), meta.get(TRACESTATE, "")
    if not (isinstance(traceparent, str) and isinstance(tracestate, str)):
        yield
        return
    token = otel_context.attach(context_from(traceparent, tracestate))
    try:
        yield
    finally:
        otel_context.detach(token)


_COMMON: Final[dict[str, Handler]] = {
    "tools/list": Methods._list_tools,
    "tools/call": Methods._call_tool,
    "prompts/list": _list_handler("prompts"),
    "prompts/get": Methods._get_prompt,
    "resources/list": _list_handler("resources"),
    "resources/templates/list": _list_handler("templates"),
    "resources/read": Methods._read,
    "completion/complete": Methods._complete,
}
_LEGACY: Final[dict[str, Handler]] = {
    **_COMMON,
    "ping": Methods._ping,
    "logging/setLevel": Methods._set_level,
    "resources/subscribe": Methods._subscribe,
    "resources/unsubscribe": Methods._unsubscribe,
}
_MODERN: Final[dict[str, Handler]] = {
    **_COMMON,
    "server/discover": Methods._discover,
    "subscriptions/listen": Methods._listen,
}
