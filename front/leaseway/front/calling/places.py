"""Where a call of a leased tool runs: in the session that the client says, or in a new one."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from leaseway.front.calling.conversations import COOKIE, Conversations, client_name, is_offered
from leaseway.front.calling.handles import UNKNOWN_SESSION, OfferedTool, SessionOffer
from leaseway.front.calling.requests import Request
from leaseway.front.calling.session_argument import (
    InvalidSessionArgument,
    argument_names,
    take_argument,
    take_handle,
)
from leaseway.front.calling.suspended_calls import waits_for_request, wrong_state
from leaseway.front.catalog import CatalogCache
from leaseway.front.sessions.live_session import LiveSession
from leaseway.sdk import Tool


class Place(NamedTuple):
    """Where a call runs.

    Attributes:
        session: The session that has its leases; None means that it leases for itself alone.
        is_carried: Whether the client's other requests find the session without an argument.
        is_new: Whether the call began the session.
        is_told: Whether the result says the session.
        argument: How the tool takes the session as an argument, or None.
    """

    session: LiveSession | None
    is_carried: bool = True
    is_new: bool = False
    is_told: bool = False
    argument: OfferedTool | None = None

    def is_lasting(self, tool: Tool | None) -> bool:
        """Return whether what belongs to the session of a call outlasts the call.

        Approvals and artifacts do: each belongs to one session.
        """
        if tool is not None and tool.shared:
            return True
        return self.session is not None and not self.is_new


class Places:
    """Finds where calls of leased tools run.

    Args:
        catalog: The lists of tools.
        conversations: Finds the session of a call by everything but its arguments.
        offer: How tools take their session as an argument; None if they do not.
    """

    def __init__(
        self, catalog: CatalogCache, conversations: Conversations, offer: SessionOffer | None
    ) -> None:
        self._catalog = catalog
        self._conversations = conversations
        self._offer = offer

    async def find(
        self, request: Request, tool: Tool | None, arguments: bytes
    ) -> tuple[Place, bytes]:
        """Find the session of a call, or begin one; return it and the server's arguments.

        Args:
            request: The client's request.
            tool: The tool; None if it is not known: only the session may have it.
            arguments: The client's arguments.

        Raises:
            InvalidSessionArgument: The argument is no session of this client.
            JsonRpcError: The session has ended, or there are too many.
        """
        carried, scope, offer = request.carried, request.scope, self._offer
        rules = self._conversations.options.rules_of(tool)
        is_shown = offer is not None and tool is not None and is_offered(rules, request.has_session)
        argument, handle = None, ""
        if offer is not None and (is_shown or offer.may_carry(arguments)):
            argument, arguments, handle = await self._take(
                offer, request, tool, arguments, is_shown
            )
        waiting = request.waiting
        if waiting and not waits_for_request(waiting):
            request.waiting = ""
            live = await carried.sessions.open(waiting, scope)
            if live is None:
                raise wrong_state()
            place = Place(live, is_carried=False, is_new=True, is_told=True, argument=argument)
            return place, arguments
        if handle:
            live = await carried.sessions.open(handle, scope)
            if live is None:
                raise InvalidSessionArgument(UNKNOWN_SESSION)
            if carried.protocol is not None and carried.protocol is not live:
                carried.protocol.let_out(live)
            return Place(live, is_carried=False, argument=argument), arguments
        meta, reply = request.meta, request.reply
        live = self._conversations.find(carried, meta, scope, rules, reply=reply)
        protocol = carried.protocol
        if protocol is not None and protocol.renews and live is protocol.placed:
            return await self._renewed(request, protocol, argument), arguments
        if live is not None or not is_shown:
            return Place(live, argument=argument), arguments
        cookie = carried.cookie if COOKIE in rules and reply is not None else None
        if argument is None and cookie is None:
            return Place(None), arguments
        live = carried.sessions.create_handle(scope, client_name(meta, carried))
        if cookie is not None and reply is not None:
            cookie.set_on(reply, live.id)
        place = Place(live, is_carried=False, is_new=True, is_told=True, argument=argument)
        return place, arguments

    async def _take(
        self,
        offer: SessionOffer,
        request: Request,
        tool: Tool | None,
        arguments: bytes,
        is_shown: bool,
    ) -> tuple[OfferedTool | None, bytes, str]:
        """Take the session off the arguments; return how the tool takes it, and both."""
        if tool is None:  # only the session may have it
            for name in argument_names(offer.argument):
                others, handle = take_handle(arguments, name)
                if handle:
                    return None, others, handle
            return None, arguments, ""
        listing = await self._catalog.listing("tools", request.scope)
        argument = offer.of_tool(listing, request.scope, tool)
        if argument is None:
            return None, arguments, ""
        take = take_argument if is_shown else take_handle
        return argument, *take(arguments, argument.argument)

    async def _renewed(
        self, request: Request, protocol: LiveSession, argument: OfferedTool | None
    ) -> Place:
        """Place a call of a client that may leave its session after it; the result says a handle.

        A later call without the handle shows that it continues its session after all.
        """
        sessions, live = request.carried.sessions, protocol.placed
        assert live is not None
        if protocol.has_told and not live.calls_in_flight:
            await sessions.keep(protocol)
            return Place(live)
        protocol.has_told = True
        if argument is not None:  # the client may know another schema of the result
            argument = replace(argument, is_structured=False)
        return Place(live, is_carried=False, is_told=True, argument=argument)
