"""The MCP methods, answered through the SDK: the same code for every transport and version.

A handler gets one request and returns its result as JSON, or raises `JsonRpcError`. The transports
deal with headers, streams and session ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

from msgspec import structs

from leaseway.front.calling import handles
from leaseway.front.calling.conversations import Conversations, SessionOptions
from leaseway.front.calling.declaring import CAPABILITY_OF, Declaring
from leaseway.front.calling.handles import SessionOffer
from leaseway.front.calling.listening import listen
from leaseway.front.calling.listing import listed_in, shown_to
from leaseway.front.calling.media import MediaMode, artifact_ref, read_artifact
from leaseway.front.calling.places import Place
from leaseway.front.calling.plain_calls import PlainCalls, find_tool
from leaseway.front.calling.requests import (
    Request,
    admit_leased,
    log_level,
    payload_of,
    protocol_session,
    read_params,
    session_of,
    traced,
    wants_links,
)
from leaseway.front.calling.suspended_calls import (
    Binding,
    HeldSessions,
    SuspendedCalls,
    asks_for_input,
    pass_answers_on,
)
from leaseway.front.calling.tool_calls import ToolCalls
from leaseway.front.catalog import CatalogCache, Instructions
from leaseway.front.lists.definitions import PagedListing
from leaseway.front.lists.tool_search import CALL, DESCRIBE, SEARCH, ToolSearch, search_listing
from leaseway.front.lists.ui_resources import result_for_client
from leaseway.front.protocol.handshake import discover_result
from leaseway.front.protocol.messages import (
    CallParams,
    CompleteParams,
    JsonRpcError,
    ListenParams,
    ListParams,
    PromptParams,
    ResourceParams,
    SetLevelParams,
    encode,
)
from leaseway.front.protocol.results import adapt_result, resource_error, rpc_error
from leaseway.front.starts import check_problems
from leaseway.sdk import AsyncClient, LeasewayError, Tool
from leaseway.sdk.relay import (
    BegunCall,
    McpRequest,
    prompt_completion,
    prompt_request,
    read_request,
    send_request,
    template_completion,
)
from leaseway.wire.listing.definitions import ListKind
from leaseway.wire.messages.mcp import INVALID_PARAMS, METHOD_NOT_FOUND

_EMPTY: Final = b"{}"
_indexing: Final = ThreadPoolExecutor(1, "front-index")
"""One thread makes all search indexes: in several, each would make that of the same new list."""

Handler = Callable[["Methods", Request], Awaitable[bytes]]


def _list_handler(kind: ListKind) -> Handler:
    async def list_page(methods: Methods, request: Request) -> bytes:
        params = read_params(request, ListParams)
        live = session_of(request, methods._conversations, tells_end=False)
        with _reading(request, kind, params):
            listing = await shown_to(methods.catalog, kind, request, live)
        return listing.page(params.cursor, modern=request.modern)

    return list_page


def _reading(request: Request, kind: ListKind, params: ListParams) -> AbstractContextManager[None]:
    live = request.carried.protocol
    return live.reads(kind) if live is not None and params.cursor is None else nullcontext()


class Methods:
    """Handles requests for one tenant.

    Args:
        client: The tenant's client.
        search: Whether to list three search tools instead of all tools.
        media: How clients get images and audio by default.
        handles: Whether to offer handles, arguments for sessions and cookies to clients whose
            protocol has no sessions.
        sessions: How the session of a call is found.
        shows_problems: Whether the client runs this Leaseway, so that it is shown configuration
            errors if there are no tools.
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
        sessions: SessionOptions | None = None,
        shows_problems: bool = False,
        control_plane: str = "",
        ending: asyncio.Event | None = None,
    ) -> None:
        self.client = client
        self._control_plane = control_plane
        self.catalog = CatalogCache(client)
        self.instructions = Instructions(self.catalog)
        self.declaring = Declaring(self.catalog, media)
        self._ending = ending or asyncio.Event()
        self._media = media
        self._shows_problems = shows_problems
        self._search = ToolSearch() if search else None
        options = sessions or SessionOptions()
        self._conversations = Conversations(options)
        self._offer = SessionOffer(options) if handles else None
        self.plain_calls = PlainCalls(
            self.catalog,
            self._conversations,
            self._offer,
            is_possible=not search and media != "links",
        )
        self._suspended = SuspendedCalls()
        self._held = HeldSessions(client)
        self._calls = ToolCalls(
            client, self.catalog, self._conversations, self._offer, self._held, media
        )

    async def handle(self, request: Request) -> bytes:
        """Return the result of a request as JSON.

        Raises:
            JsonRpcError: The request failed, or its method is unknown.
        """
        message = request.message
        method = message.method
        handler = (_MODERN if request.modern else _LEGACY).get(method)
        if handler is None:
            raise JsonRpcError(METHOD_NOT_FOUND, f"Unknown method {method[:100]!r}.")
        if handles.may_have_handle(message.params):
            request.carried = await handles.with_handle(request.carried, message, request.scope)
        try:
            if method in CAPABILITY_OF:
                await self.declaring.check(request)
            return await handler(self, request)
        except LeasewayError as error:
            raise rpc_error(error, modern=request.modern) from None

    async def go_on(self, request: Request, place: Place, tool: Tool, begun: BegunCall) -> bytes:
        """Return the result of a plain call that has begun and goes on in a task.

        Raises as `handle`.
        """
        params = read_params(request, CallParams)
        request.begun = begun
        call = self._calls.call_in(request, place, tool, params, begun.payload)
        try:
            return await self._suspended.run(request, params, _binding(request, params), call)
        except LeasewayError as error:
            raise rpc_error(error, modern=request.modern) from None

    async def tool(self, name: str, scope: str) -> Tool | None:
        return find_tool(await self.catalog.listing("tools", scope), name)

    async def _ping(self, request: Request) -> bytes:
        read_params(request, ListParams)
        return _EMPTY

    async def _discover(self, request: Request) -> bytes:
        read_params(request, ListParams)
        instructions = await self.instructions.text(request.scope)
        declared = await self.declaring.declared(request.scope, request.media)
        return discover_result(instructions, self._control_plane, declared)

    async def _list_tools(self, request: Request) -> bytes:
        params = read_params(request, ListParams)
        with _reading(request, "tools", params):
            return await self._tools_page(request, params)

    async def _tools_page(self, request: Request, params: ListParams) -> bytes:
        shown: PagedListing[Any] | None = search_listing() if self._search is not None else None
        offer = self._offer
        is_own = False
        if shown is None or offer is not None or self._shows_problems:
            live = session_of(request, self._conversations, tells_end=False)
            listing = await listed_in(self.catalog, "tools", request, live)
            if self._shows_problems and not listing.keys:
                await check_problems(self.client)
            is_own = listing.is_own
            shown = shown or listing
            if offer is not None:
                shown = offer.add_tools(listing, request.scope, shown, request.has_session)
        if not is_own:
            shown = self.catalog.visible("tools", shown, request.listener.mcp_client)
        return shown.page(params.cursor, modern=request.modern)

    def _call_tool(self, request: Request) -> Awaitable[bytes]:
        params = read_params(request, CallParams)
        if self._search is None and not request.modern:
            return self._calls.call(request, params)
        if self._search is not None:
            return self._call_searched(request, params, self._search)
        return self._begin_call(request, params)

    async def _call_searched(
        self, request: Request, params: CallParams, search: ToolSearch
    ) -> bytes:
        """Call a tool of a client that searches for tools."""
        if params.name in (SEARCH, DESCRIBE):
            live = session_of(request, self._conversations, tells_end=False)
            listing = await shown_to(self.catalog, "tools", request, live)
            if params.name == SEARCH:
                index = search.known_index(listing)
                if index is None:
                    loop = asyncio.get_running_loop()
                    index = await loop.run_in_executor(_indexing, search.index_of, listing)
                found = search.search(index, params.arguments_json())
            else:
                defined = partial(self._as_listed, request, listing)
                found = search.describe(listing, params.arguments_json(), defined)
            return adapt_result(found, modern=request.modern)
        if params.name == CALL:
            answers = {"responses": params.responses, "state": params.state}
            params = structs.replace(search.called_tool(params.arguments_json()), **answers)
        return await self._begin_call(request, params)

    def _begin_call(self, request: Request, params: CallParams) -> Awaitable[bytes]:
        if not request.modern:  # other versions have no calls of several rounds
            return self._calls.call(request, params)
        binding = _binding(request, params)
        pass_answers_on(request, params, binding)
        return self._suspended.run(request, params, binding, self._calls.call(request, params))

    def _as_listed(self, request: Request, listing: PagedListing[Tool], tool: Tool) -> Tool:
        """Return a tool as it is listed to the client."""
        if self._offer is None or not self._offer.shows(tool, request.has_session):
            return tool
        offered = self._offer.of_tool(listing, request.scope, tool)
        return tool if offered is None else offered.tool

    async def _get_prompt(self, request: Request) -> bytes:
        params = read_params(request, PromptParams)
        arguments = encode(params.arguments)
        binding = Binding(request.scope, "prompts/get", params.name, arguments)
        pass_answers_on(request, params, binding)
        live = session_of(request, self._conversations)
        if live is not None and wants_links(request, self._media):
            request.listener.inline_media = False
        mcp_request = prompt_request(params.name, params.arguments, request.scope or None)
        server = None
        if not request.scope:
            prompt = (await self.catalog.listing("prompts")).items.get((params.name,))
            server = prompt.server_id if prompt is not None else None
        call = self._send(request, mcp_request, server, links=True)
        return await self._suspended.run(request, params, binding, call)

    async def _read(self, request: Request) -> bytes:
        params = read_params(request, ResourceParams)
        binding = Binding(request.scope, "resources/read", params.uri)
        pass_answers_on(request, params, binding)
        if (ref := artifact_ref(params.uri)) is not None:
            live = session_of(request, self._conversations)
            reader = live.sdk if live is not None else self.client
            contents = await read_artifact(reader, params.uri, ref, modern=request.modern)
            return adapt_result(contents, modern=request.modern, cached=True)
        resource = await self.catalog.resource(params.uri, request.scope, request.session_id)
        mcp_request = read_request(resource.uri, resource.server)
        server = resource.server if resource.is_renamed else None
        try:
            call = self._send(request, mcp_request, server, cached=True)
            return await self._suspended.run(request, params, binding, call)
        except LeasewayError as error:
            modern, at_server = request.modern, resource.uri
            raise resource_error(error, params.uri, modern=modern, at_server=at_server) from None

    async def _complete(self, request: Request) -> bytes:
        params = read_params(request, CompleteParams)
        context = params.context.arguments if params.context is not None else None
        rest = (params.argument.name, params.argument.value, context, request.scope or None)
        ref = params.ref
        if ref.type == "ref/prompt" and ref.name is not None:
            return await self._send(request, prompt_completion(ref.name, *rest))
        if ref.type == "ref/resource" and ref.uri is not None:
            template = await self.catalog.resource(ref.uri, request.scope)
            rest = (*rest[:-1], template.server)
            return await self._send(request, template_completion(template.uri, *rest))
        text = "`ref` must be a ref/prompt with a name or a ref/resource with a uri."
        raise JsonRpcError(INVALID_PARAMS, text)

    async def _send(
        self,
        request: Request,
        mcp_request: McpRequest,
        server: str | None = None,
        *,
        cached: bool = False,
        links: bool = False,
    ) -> bytes:
        """Send a request about a prompt or a resource; return the result.

        Args:
            request: The client's request.
            mcp_request: What is sent.
            server: The server whose URIs differ for the client, or None.
            cached: Whether the result carries cache hints in modern versions.
            links: Whether the result may name resources that the client can read.
        """
        live, listener = session_of(request, self._conversations), request.listener
        with traced(request.meta):
            if live is not None:
                listener.lease_ttl = live.lease_ttl
                live.begin_call()
                try:
                    result = await send_request(live.sdk, mcp_request, listener)
                finally:
                    live.end_call()
                await admit_leased(request, live)
            else:
                async with self._held.opened(request) as waiting:
                    result = await send_request(waiting.session, mcp_request, listener)
                    waiting.has_to_wait = asks_for_input(result.payload)
        payload = payload_of(result, request)
        if server is not None:
            if links:
                self.catalog.learn_links(request.session_id, server, payload)
            payload = result_for_client(payload, server)
        return adapt_result(payload, modern=request.modern, cached=cached)

    async def _set_level(self, request: Request) -> bytes:
        level = log_level(read_params(request, SetLevelParams).level)
        protocol = protocol_session(request)
        protocol.log_level = level
        await request.carried.sessions.save(protocol)
        return _EMPTY

    async def _subscribe(self, request: Request) -> bytes:
        uri = read_params(request, ResourceParams).uri
        protocol = protocol_session(request)
        live = session_of(request, self._conversations) or protocol
        resource = await self.catalog.resource(uri, request.scope, request.session_id)
        try:
            await protocol.subscribe(uri, live.sdk, resource)
            await admit_leased(request, live)
        except LeasewayError as error:
            raise resource_error(error, uri, modern=False, at_server=resource.uri) from None
        except JsonRpcError:
            await protocol.unsubscribe(uri)
            raise
        await request.carried.sessions.save(protocol)
        return _EMPTY

    async def _unsubscribe(self, request: Request) -> bytes:
        uri = read_params(request, ResourceParams).uri
        protocol = protocol_session(request)
        await protocol.unsubscribe(uri)
        await request.carried.sessions.save(protocol)
        return _EMPTY

    async def _listen(self, request: Request) -> bytes:
        """Send change notifications until the client cancels its request, or the front ends."""
        filters = read_params(request, ListenParams).notifications
        live = session_of(request, self._conversations)
        session = live.sdk if live is not None else self.client
        return await listen(request, filters, self.catalog, session, self._ending, live)


def _binding(request: Request, params: CallParams) -> Binding:
    return Binding(request.scope, "tools/call", params.name, bytes(params.arguments))


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
