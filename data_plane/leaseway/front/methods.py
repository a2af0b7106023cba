"""The methods of MCP, answered through the SDK: the same for every transport and era.

A handler gets one request and returns its result as JSON, or raises `RpcError`. What belongs to a
transport (headers, streams, session ids) is settled before and after.
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
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from leaseway.front.calling import approvals
from leaseway.front.calling.handles import (
    ACQUIRE,
    HandleListing,
    HandleTable,
    acquire,
    handle_tool,
    release,
)
from leaseway.front.calling.media import (
    MEDIA_KEY,
    MediaWish,
    link_media,
    linked_artifact,
    media_wish,
    read_linked,
)
from leaseway.front.calling.parked import ParkedCalls, waits
from leaseway.front.calling.relay import Listener, call_tool, send_request
from leaseway.front.calling.sessions import LiveSession, TooManySubscriptions
from leaseway.front.calling.subscriptions import FollowedResource
from leaseway.front.catalog import Catalog
from leaseway.front.failures import failed_call, rpc_error
from leaseway.front.greeting import discover_result
from leaseway.front.messages import (
    CallParams,
    CompleteParams,
    Continued,
    ListenFilter,
    ListenParams,
    ListParams,
    Message,
    ParamsT,
    PromptParams,
    ResourceParams,
    RpcError,
    SetLevelParams,
    decode,
    encode,
    notification,
    params_of,
)
from leaseway.front.results import fit_result
from leaseway.front.tool_search import CALL, DESCRIBE, SEARCH, ToolSearch, search_listing
from leaseway.sdk import AsyncClient, AsyncSession, ConfirmationRequired, LeasewayError, Tool
from leaseway.sdk.calls import requests
from leaseway.sdk.calls.requests import McpRequest
from leaseway.sdk.calls.results import ToolResult
from leaseway.wire.bounds import MAX_META
from leaseway.wire.errors import Fault
from leaseway.wire.messages.mcp import LOG_LEVELS, is_reserved_meta

_EMPTY: Final = b"{}"
_CHANGED: Final = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "templates": "resources",
}
"""Which notification tells of a change of a list."""

_MOST_FOLLOWED: Final = 256
"""Resources that one stream follows."""

_MOST_TOLD: Final = 3
"""Errors that are named to a client which finds no tool."""

_trace: Final = TraceContextTextMapPropagator()


@dataclass(slots=True)
class Request:
    """One request of a client, under way.

    Attributes:
        message: What was sent.
        listener: Takes what is to be said on the way.
        modern: Whether the client speaks 2026-07-28 or newer.
        scope: The server that the client sees; empty means all.
        session: Whose it is; None for a modern client that carries no lease.
        meta: The request's `_meta`.
        handles: Where its client's handles of leases lead; None in an era that has sessions.
        media: How it wants images and sounds; None where it does not say.
    """

    message: Message
    listener: Listener
    modern: bool
    scope: str
    session: LiveSession | None
    meta: dict[str, Any] = field(default_factory=dict)
    handles: HandleTable | None = None
    media: MediaWish | None = None


Handler = Callable[["Methods", Request], Awaitable[bytes]]


def changed_notification(kind: str, meta: dict[str, Any] | None = None) -> bytes:
    params = encode({"_meta": meta}) if meta else _EMPTY
    return notification(f"notifications/{_CHANGED[kind]}/list_changed", params)


class Methods:
    """Answers requests with what one tenant sees.

    Args:
        client: The tenant's client.
        catalog: Its lists.
        search: Whether three tools to search all others are listed instead of them.
        media: How clients that do not say want images and sounds.
        handles: Whether clients that may carry handles of leases are listed the tools for them.
        tells_problems: Whether its client is the operator, too, who is told why there is no tool.
    """

    def __init__(
        self,
        client: AsyncClient,
        catalog: Catalog,
        *,
        search: bool = False,
        media: MediaWish = "inline",
        handles: bool = True,
        tells_problems: bool = False,
    ) -> None:
        self._client = client
        self._catalog = catalog
        self._media = media
        self._tells_problems = tells_problems
        self._search = ToolSearch() if search else None
        self._handles = HandleListing() if handles else None
        self._parked = ParkedCalls()

    async def answer(self, request: Request) -> bytes:
        """Return the result of a request as JSON.

        Raises:
            RpcError: It failed; also where there is no such method.
        """
        method = request.message.method or ""
        handler = (_MODERN if request.modern else _LEGACY).get(method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"There is no method {method[:100]!r} here.")
        try:
            return await handler(self, request)
        except LeasewayError as error:
            raise rpc_error(error) from None
        except Fault as fault:  # a request that cannot even be written
            raise RpcError(INVALID_PARAMS, fault.message) from None

    async def tool(self, name: str, scope: str) -> Tool | None:
        listing = await self._catalog.listing("tools", scope)
        tool: Tool | None = listing.items.get((name,))
        return tool

    async def _ping(self, _request: Request) -> bytes:
        return _EMPTY

    async def _discover(self, request: Request) -> bytes:
        read_params(request, ListParams)
        return discover_result()

    async def _list(self, request: Request, kind: str) -> bytes:
        params = read_params(request, ListParams)
        listing = await self._catalog.listing(kind, request.scope)
        return listing.page(params.cursor, modern=request.modern)

    async def _list_tools(self, request: Request) -> bytes:
        params = read_params(request, ListParams)
        shown = search_listing() if self._search is not None else None
        handles = self._handles if request.handles is not None else None
        if shown is None or handles is not None or self._tells_problems:
            listing = await self._catalog.listing("tools", request.scope)
            if self._tells_problems and not listing.keys:
                await self._tell_why_nothing_is_there()
            shown = shown or listing
            if handles is not None:
                shown = handles.of(listing, request.scope, shown)
        return shown.page(params.cursor, modern=request.modern)

    async def _tell_why_nothing_is_there(self) -> None:
        """Raise `RpcError` with the errors of the configuration and its servers, if any."""
        errors = [one for one in await self._client.problems() if one.severity == "error"]
        if errors:
            told = " ".join(one.message for one in errors[:_MOST_TOLD])
            more = len(errors) - _MOST_TOLD
            rest = f" There are {more} errors more." if more > 0 else ""
            raise RpcError(
                INTERNAL_ERROR,
                f"There is no tool: {told}{rest} The file is read again when it changes.",
                {"reason": errors[0].reason, "started": "no"},
            )

    async def _list_prompts(self, request: Request) -> bytes:
        return await self._list(request, "prompts")

    async def _list_resources(self, request: Request) -> bytes:
        return await self._list(request, "resources")

    async def _list_templates(self, request: Request) -> bytes:
        return await self._list(request, "templates")

    async def _call_tool(self, request: Request) -> bytes:
        params = read_params(request, CallParams)
        _take_input(request, params)
        if self._search is not None and params.name in (SEARCH, DESCRIBE):
            listing = await self._catalog.listing("tools", request.scope)
            answer = self._search.found if params.name == SEARCH else self._search.described
            return fit_result(answer(listing, params.arguments_json()), modern=request.modern)
        if self._search is not None and params.name == CALL:
            answers = {"responses": params.responses, "state": params.state}
            params = structs.replace(self._search.meant(params.arguments_json()), **answers)
        return await self._asking(request, params, self._call(request, params))

    def _asking(
        self, request: Request, params: Continued, answer: Coroutine[Any, Any, bytes]
    ) -> Coroutine[Any, Any, bytes]:
        """Answer a request during which its server may ask; a modern client is told by a result."""
        if not (request.modern and request.listener.answers):
            return answer
        if params.state is None or not waits(params.state):
            return self._parked.begin(request.listener, answer)
        answer.close()  # it is under way
        return self._parked.go_on(request.listener, params.state, bytes(params.responses))

    async def _call(self, request: Request, params: CallParams) -> bytes:
        arguments = params.arguments_json()
        tool = await self.tool(params.name, request.scope)
        table = request.handles if self._handles is not None else None
        if tool is None and table is not None and (own := handle_tool(params.name)):
            answer = acquire if own == ACQUIRE else release
            session = request.session  # that of a connection has no id that anybody could carry
            carried = session if session is not None and session.id else None
            told = await answer(table, carried, request.scope, arguments)
            return fit_result(told, modern=request.modern)
        if tool is None and request.scope:
            tool = (await self._catalog.fresh("tools", request.scope)).items.get((params.name,))
            if tool is None:
                raise RpcError(
                    INVALID_PARAMS,
                    f"Server '{request.scope}' has no tool '{params.name[:100]}'; tools/list "
                    "names those that it has.",
                )
        # Agreement counts, and artifacts are kept, in one session.
        lasts = request.session is not None or (tool is not None and tool.shared)
        self._settle_media(request, lasts)
        if request.modern and approvals.continues(params.state):
            await approvals.take_answer(self._client, params.state or "", bytes(params.responses))
            request.listener.input = b""
        try:
            try:
                result = await self._relay(request, tool, params.name, arguments)
            except ConfirmationRequired as error:
                if not lasts or not approvals.can_ask(request.listener, error):
                    raise
                if request.modern:
                    return await approvals.asking(self._client, error)
                await approvals.ask_user(self._client, request.listener, error)
                result = await self._relay(request, tool, params.name, arguments)
        except LeasewayError as error:
            failed = failed_call(error)
            if failed is None:
                raise
            return fit_result(failed, modern=request.modern)
        return fit_result(_payload_of(result, request), modern=request.modern)

    def _settle_media(self, request: Request, lasts: bool) -> None:
        """Have images and sounds kept where the client wants links and could follow them later."""
        if lasts and (request.media or self._media) == "links":
            request.listener.inline_media = False

    async def _relay(
        self, request: Request, tool: Tool | None, name: str, arguments: bytes
    ) -> ToolResult:
        if request.session is not None and "traceparent" not in request.meta:
            # Most calls need nothing around them.
            return await call_tool(request.session.sdk, name, arguments, request.listener)
        with _traced(request.meta):
            async with self._in_session(request, tool) as session:
                return await call_tool(session, name, arguments, request.listener)

    async def _get_prompt(self, request: Request) -> bytes:
        params = read_params(request, PromptParams)
        _take_input(request, params)
        self._settle_media(request, request.session is not None)
        asked = requests.get(params.name, params.arguments, request.scope or None)
        return await self._asking(request, params, self._send(request, asked))

    async def _read(self, request: Request) -> bytes:
        params = read_params(request, ResourceParams)
        _take_input(request, params)
        if (ref := linked_artifact(params.uri)) is not None:
            reader = request.session.sdk if request.session is not None else self._client
            contents = await read_linked(reader, params.uri, ref, modern=request.modern)
            return fit_result(contents, modern=request.modern, cached=True)
        asked = requests.read(params.uri, request.scope or None)
        try:
            return await self._asking(request, params, self._send(request, asked, cached=True))
        except LeasewayError as error:
            raise rpc_error(error, uri=params.uri) from None

    async def _complete(self, request: Request) -> bytes:
        params = read_params(request, CompleteParams)
        context = params.context.arguments if params.context is not None else None
        rest = requests.completion_params(params.argument.name, params.argument.value, context)
        ref, server = params.ref, request.scope or None
        if ref.type == "ref/prompt" and ref.name is not None:
            return await self._send(request, requests.complete_prompt(ref.name, rest, server))
        if ref.type == "ref/resource" and ref.uri is not None:
            return await self._send(request, requests.complete_template(ref.uri, rest, server))
        raise RpcError(INVALID_PARAMS, "`ref` is a ref/prompt with a name or a ref/resource.")

    async def _send(self, request: Request, asked: McpRequest, *, cached: bool = False) -> bytes:
        with _traced(request.meta):
            async with self._in_session(request, None) as session:
                result = await send_request(session, asked, request.listener)
        return fit_result(_payload_of(result, request), modern=request.modern, cached=cached)

    async def _set_level(self, request: Request) -> bytes:
        level = read_params(request, SetLevelParams).level
        if level not in LOG_LEVELS:
            raise RpcError(INVALID_PARAMS, f"A log level is one of {', '.join(LOG_LEVELS)}.")
        assert request.session is not None
        request.session.log_level = level
        return _EMPTY

    async def _subscribe(self, request: Request) -> bytes:
        uri = read_params(request, ResourceParams).uri
        assert request.session is not None
        try:
            await request.session.subscribe(uri)
        except TooManySubscriptions as refusal:
            raise RpcError(INVALID_PARAMS, str(refusal)) from None
        return _EMPTY

    async def _unsubscribe(self, request: Request) -> bytes:
        uri = read_params(request, ResourceParams).uri
        assert request.session is not None
        await request.session.unsubscribe(uri)
        return _EMPTY

    async def _listen(self, request: Request) -> bytes:
        """Say what changes until the client ends its request."""
        wanted = read_params(request, ListenParams).notifications
        if len(wanted.resource_subscriptions) > _MOST_FOLLOWED:
            raise RpcError(INVALID_PARAMS, f"A stream follows at most {_MOST_FOLLOWED} resources.")
        meta = {SUBSCRIPTION_ID_META_KEY: decode(request.message.request_id)}
        send = request.listener.send
        kinds = {
            "tools": wanted.tools_list_changed,
            "prompts": wanted.prompts_list_changed,
            "resources": wanted.resources_list_changed,
            "templates": wanted.resources_list_changed,
        }

        def changed(kind: str, servers: frozenset[str]) -> None:
            if kinds[kind] and (not request.scope or request.scope in servers):
                send(changed_notification(kind, meta))

        def updated(uri: str) -> None:
            params = encode({"uri": uri, "_meta": meta})
            send(notification("notifications/resources/updated", params))

        async with contextlib.AsyncExitStack() as stack:
            for kind in [kind for kind, is_wanted in kinds.items() if is_wanted]:
                await self._catalog.listing(kind)  # what is not known cannot be seen to change
            stack.callback(self._catalog.follow(changed))
            session = request.session.sdk if request.session is not None else self._client
            for uri in dict.fromkeys(wanted.resource_subscriptions):
                followed = FollowedResource(session, uri, request.scope or None, updated)
                stack.push_async_callback(followed.end)
                await followed.holds()
            params = encode({"notifications": _honored(wanted), "_meta": meta})
            send(notification("notifications/subscriptions/acknowledged", params))
            await asyncio.Event().wait()
        raise AssertionError("A stream ends by being cancelled.")

    @contextlib.asynccontextmanager
    async def _in_session(
        self, request: Request, tool: Tool | None
    ) -> AsyncIterator[AsyncSession | AsyncClient]:
        """Give what a request runs in: its client's session, or one for this request alone."""
        if request.session is not None:
            yield request.session.sdk
        elif tool is not None and tool.shared:
            yield self._client
        else:
            async with self._client.session(f"mcp-request-{secrets.token_hex(12)}") as session:
                yield session


def read_params(request: Request, kind: type[ParamsT]) -> ParamsT:
    """Return a request's params, and take what their `_meta` asks for.

    Raises:
        RpcError: They have not the shape that the method wants.
    """
    params = params_of(request.message, kind)
    meta = params.meta
    if meta:
        request.meta = meta
        listener = request.listener
        if MEDIA_KEY in meta:
            request.media = media_wish(meta[MEDIA_KEY])
        if "progressToken" in meta:
            listener.token = encode(meta["progressToken"])
            listener.wants_progress = True
        if request.modern:
            level = meta.get(LOG_LEVEL_META_KEY)
            listener.log_level = level if level in LOG_LEVELS else ""
        kept = {key: value for key, value in meta.items() if not is_reserved_meta(key)}
        if kept:
            listener.meta = encode(kept)
            if len(listener.meta) > MAX_META:
                raise RpcError(INVALID_PARAMS, f"`_meta` has at most {MAX_META} bytes.")
    return params


def _payload_of(result: ToolResult, request: Request) -> bytes:
    """Return a result as its client wants it."""
    return result.payload if request.listener.inline_media else link_media(result.payload)


def _take_input(request: Request, params: Continued) -> None:
    """Take a modern client's answers to what a server asked."""
    if not request.modern:
        return
    parts = []
    if bytes(params.responses):
        parts.append(b'"inputResponses":%b' % bytes(params.responses))
    if params.state is not None:
        parts.append(b'"requestState":%b' % encode(params.state))
    if parts:
        request.listener.input = b"{%b}" % b",".join(parts)


def _honored(wanted: ListenFilter) -> dict[str, Any]:
    """Return what is followed of what a client wants: all that it named."""
    flags = {
        "toolsListChanged": wanted.tools_list_changed,
        "promptsListChanged": wanted.prompts_list_changed,
        "resourcesListChanged": wanted.resources_list_changed,
    }
    honored: dict[str, Any] = {name: True for name, flag in flags.items() if flag}
    if wanted.resource_subscriptions:
        honored["resourceSubscriptions"] = wanted.resource_subscriptions
    return honored


@contextlib.contextmanager
def _traced(meta: dict[str, Any]) -> Iterator[None]:
    """Join what runs in the block to the client's trace, where it named one."""
    if "traceparent" not in meta:
        yield
        return
    carrier = {key: meta[key] for key in ("traceparent", "tracestate") if key in meta}
    if not all(isinstance(value, str) for value in carrier.values()):
        yield
        return
    token = otel_context.attach(_trace.extract(carrier))
    try:
        yield
    finally:
        otel_context.detach(token)


_COMMON: Final[dict[str, Handler]] = {
    "tools/list": Methods._list_tools,
    "tools/call": Methods._call_tool,
    "prompts/list": Methods._list_prompts,
    "prompts/get": Methods._get_prompt,
    "resources/list": Methods._list_resources,
    "resources/templates/list": Methods._list_templates,
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
