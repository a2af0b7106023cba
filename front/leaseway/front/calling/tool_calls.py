"""How a tool is called: found, called in its place, its result made one for the client.

`Methods` hands every `tools/call` to it but those of the search tools. Calls that need less run
without it (`plain_calls`).
"""

from __future__ import annotations

import time

from msgspec import structs

from leaseway.front.calling import approvals
from leaseway.front.calling.conversations import Conversations, client_name
from leaseway.front.calling.handles import ACQUIRE, SessionOffer, acquire, handle_tool, release
from leaseway.front.calling.listing import listed_in
from leaseway.front.calling.media import MediaMode
from leaseway.front.calling.places import Place, Places
from leaseway.front.calling.plain_calls import find_tool
from leaseway.front.calling.requests import Request, payload_of, session_of, traced, wants_links
from leaseway.front.calling.session_argument import InvalidSessionArgument, announce
from leaseway.front.calling.suspended_calls import TIMEOUT, HeldSessions, asks_for_input
from leaseway.front.catalog import CatalogCache
from leaseway.front.lists.definitions import server_arguments
from leaseway.front.lists.login_tool import login_arguments
from leaseway.front.lists.ui_resources import result_for_client
from leaseway.front.protocol.eras import to_2025_11_25
from leaseway.front.protocol.messages import CallParams
from leaseway.front.protocol.results import (
    adapt_result,
    error_result,
    fitting_result,
    result_for_program,
    tool_error,
)
from leaseway.front.sessions.live_session import LiveSession
from leaseway.sdk import (
    AsyncClient,
    ConfirmationRequired,
    LeaseError,
    LeasewayError,
    Tool,
    ToolNotFound,
    ToolResult,
)
from leaseway.sdk.relay import call_tool
from leaseway.wire.messages.mcp import TRACEPARENT
from leaseway.wire.names import qualified
from leaseway.wire.text.suggestions import alike


class ToolCalls:
    """Calls tools for one tenant.

    Args:
        client: The tenant's client.
        catalog: The lists of tools.
        conversations: Finds the sessions of calls.
        offer: How tools take their session as an argument; None if they do not.
        held: The sessions of requests that wait for their client's next try.
        media: How clients get images and audio by default.
    """

    def __init__(
        self,
        client: AsyncClient,
        catalog: CatalogCache,
        conversations: Conversations,
        offer: SessionOffer | None,
        held: HeldSessions,
        media: MediaMode,
    ) -> None:
        self._client = client
        self._catalog = catalog
        self._conversations = conversations
        self._offer = offer
        self._places = Places(catalog, conversations, offer)
        self._held = held
        self._media = media
        self._decisions = approvals.Decisions(client)

    async def call(self, request: Request, params: CallParams) -> bytes:
        """Find a tool and the place of its call, and call it there; return the client's result.

        Raises:
            JsonRpcError, LeasewayError: The call failed.
        """
        arguments = params.arguments_json()
        listing = self._catalog.cached("tools", request.scope)
        if listing is None:
            listing = await self._catalog.listing("tools", request.scope)
        tool = find_tool(listing, params.name)
        if tool is None and self._offer is not None and (own_tool := handle_tool(params.name)):
            return await _call_handle_tool(request, own_tool, arguments)
        if tool is None and request.scope:
            tool = (await self._catalog.fresh("tools", request.scope)).items.get((params.name,))
        if tool is not None and tool.shared:
            place = Place(session_of(request, self._conversations, tells_end=False))
        else:
            try:
                place, arguments = await self._places.find(request, tool, arguments)
            except InvalidSessionArgument as error:
                return adapt_result(tool_error(str(error)), modern=request.modern)
            tool = tool or await self._own_tool(request, place.session, params.name)
        if tool is not None:
            login = login_arguments(request.scope, tool)
            arguments = server_arguments(tool, arguments) if login is None else login
        try:
            if tool is None and request.scope:
                params = await self._before_login(request.scope, params)
            return await self.call_in(request, place, tool, params, arguments)
        except BaseException:
            if place.is_new and place.session is not None and not place.session.calls_in_flight:
                await _end_new(request, place.session)
            raise

    async def call_in(
        self,
        request: Request,
        place: Place,
        tool: Tool | None,
        params: CallParams,
        arguments: bytes,
    ) -> bytes:
        """Call a tool in its place; return the client's result.

        Args:
            request: The client's request.
            place: Where the call runs.
            tool: The tool; None if it is not known.
            params: What the client sent.
            arguments: The server's arguments.

        Raises:
            JsonRpcError, LeasewayError: The call failed, in a way that is no result.
        """
        if wants_links(request, self._media):
            is_told = place.is_carried or (tool is not None and tool.shared)
            if is_told and place.is_lasting(tool):
                request.listener.inline_media = False
        if request.modern and approvals.is_answer(params.state):
            await approvals.apply_answer(self._client, params.state or "", bytes(params.responses))
            request.listener.input = b""
        try:
            try:
                result = await self._relay(request, place, tool, params.name, arguments)
            except ConfirmationRequired as error:
                if not place.is_lasting(tool) or not approvals.can_ask(request.listener, error):
                    raise
                if request.modern:
                    if approvals.was_asked(params.state, error):
                        raise
                    question = await approvals.input_required(self._client, error)
                    return adapt_result(question, modern=True)
                await approvals.ask_user(self._client, self._decisions, request.listener, error)
                result = await self._relay(request, place, tool, params.name, arguments)
        except LeasewayError as error:
            correctable = error_result(error, tool)
            if correctable is None:
                raise
            if place.is_new and place.session is not None:
                await _end_new(request, place.session)
            return adapt_result(correctable, modern=request.modern)
        if tool is not None and not request.scope:
            self._catalog.learn_links(request.session_id, tool.server_id, result.payload)
        return client_result(request, place, tool, result)

    async def _before_login(self, scope: str, params: CallParams) -> CallParams:
        """Return a call of a tool that a server may list once a person has logged in.

        Its worker asks for the login.

        Raises:
            ToolNotFound: No login is needed, so that there is no such tool.
        """
        listing = await self._catalog.listing("tools", scope)
        if not any(login_arguments(scope, tool) for tool in listing.items.values()):
            near = alike(params.name, [tool.name for tool in listing.items.values()])
            hint = f"Did you mean '{near[0]}'?" if near else "tools/list returns its tools."
            raise ToolNotFound(f"Server '{scope}' has no tool '{params.name[:100]}'. {hint}")
        original = params.name.removeprefix(qualified(scope, ""))
        return structs.replace(params, name=qualified(scope, original))

    async def _own_tool(self, request: Request, live: LiveSession | None, name: str) -> Tool | None:
        """Return a tool that only a session has, or None."""
        if live is None or not live.sdk.leases():
            return None
        tool = live.own_lists.find(name)
        if tool is None:
            await listed_in(self._catalog, "tools", request, live)
            tool = live.own_lists.find(name)
        return tool

    async def _relay(
        self, request: Request, place: Place, tool: Tool | None, name: str, arguments: bytes
    ) -> ToolResult:
        live, listener, meta = place.session, request.listener, request.meta
        begun, request.begun = request.begun, None
        if live is not None:
            listener.lease_ttl = live.lease_ttl
            if begun is None:  # one that has begun may have outlasted its session
                if live.on_idle is None and live.id and not (tool is not None and tool.shared):
                    await request.carried.sessions.admit(live)
                live.begin_call()
            try:
                if not meta or TRACEPARENT not in meta:  # without context managers
                    return await call_tool(live.sdk, name, arguments, listener, begun=begun)
                with traced(meta):
                    return await call_tool(live.sdk, name, arguments, listener, begun=begun)
            except LeaseError:
                live.forget_own_lists()
                raise
            finally:
                live.end_call()
        with traced(request.meta):
            if tool is not None and tool.shared:
                return await call_tool(self._client, name, arguments, listener, begun=begun)
            async with self._held.opened(request) as waiting:
                result = await call_tool(waiting.session, name, arguments, listener)
                waiting.has_to_wait = asks_for_input(result.payload)
                return result


async def _end_new(request: Request, live: LiveSession) -> None:
    """End the session that a failed call began; its client is to return no cookie of it."""
    carried = request.carried
    if carried.cookie is not None and request.reply is not None:
        carried.cookie.take_back(request.reply, live.id)
    await carried.sessions.end(live)


async def _call_handle_tool(request: Request, own_tool: str, arguments: bytes) -> bytes:
    """Call a tool of the front, which begins or ends a session that its caller names."""
    carried, scope = request.carried, request.scope
    client = client_name(request.meta, carried)
    if own_tool == ACQUIRE:
        where, declared = (carried.sessions, carried.handle, scope), request.listener.mcp_client
        result = await acquire(*where, client, arguments, declared)
    else:
        result = await release(carried, scope, client, arguments)
    return adapt_result(result, modern=request.modern)


def client_result(request: Request, place: Place, tool: Tool | None, result: ToolResult) -> bytes:
    """Return a server's result as one for the client: its names, its session, its version."""
    payload = payload_of(result, request)
    if tool is None or tool.output_schema is not None:
        payload = fitting_result(payload)
    if tool is not None and not request.scope:
        payload = result_for_client(payload, tool.server_id)
    if place.is_told and place.session is not None:
        payload = _told(request, place, place.session, payload)
    if not request.modern:
        schema = tool.output_schema if tool is not None else None
        is_wrapped = schema is not None and to_2025_11_25.is_wrapped(schema)
        payload = to_2025_11_25.tool_result(payload, wrapped=is_wrapped)
        protocol = request.carried.protocol
        if protocol is not None:
            payload = result_for_program(payload, protocol.client.info.get("name"))
    return adapt_result(payload, modern=request.modern)


def _told(request: Request, place: Place, live: LiveSession, payload: bytes) -> bytes:
    """Return a result that says the session of its call."""
    if request.modern and asks_for_input(payload):
        request.waiting = live.id
        live.waits_until = time.monotonic() + TIMEOUT
    elif (offered := place.argument) is not None:
        return announce(payload, live.id, offered.argument, is_structured=offered.is_structured)
    return payload
