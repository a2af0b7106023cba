"""What the front declares beside tools: what servers that the client sees have, and no more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from leaseway.front.calling.media import MediaMode, artifact_ref
from leaseway.front.calling.requests import Request
from leaseway.front.catalog import CatalogCache
from leaseway.front.lists.ui_resources import EXTENSION
from leaseway.front.protocol.handshake import EVERYTHING, Declared
from leaseway.front.protocol.messages import JsonRpcError, ResourceParams, parse_params
from leaseway.front.sessions.live_session import LiveSession
from leaseway.sdk.relay import ServerIntroduction
from leaseway.wire.messages.mcp import METHOD_NOT_FOUND, SERVER_CAPABILITIES, ServerCapability

CAPABILITY_OF: Final[Mapping[str, ServerCapability]] = {
    "prompts/get": "prompts",
    "resources/read": "resources",
    "resources/subscribe": "subscribe",
    "resources/unsubscribe": "subscribe",
    "completion/complete": "completions",
    "logging/setLevel": "logging",
}
"""The capability that a method needs; other methods need none. Lists are empty without theirs: some
clients ask for all of them, and take an error for the loss of the whole server."""
_NAMED: Final = {"subscribe": "resources that can be subscribed to"}
_HONOURED: Final = frozenset({EXTENSION})
"""Extensions whose messages pass the front; it declares no other, whatever servers support."""
_MAX_CACHED: Final = 256


class Declaring:
    """Knows what to declare to a client, and which methods it may use.

    Args:
        catalog: Knows what servers have.
        media: How clients get images and audio by default; links to them are resources.
    """

    def __init__(self, catalog: CatalogCache, media: MediaMode) -> None:
        self._catalog = catalog
        self._media = media
        self._cached: dict[str, tuple[Collection[ServerIntroduction], Declared]] = {}

    async def declared(self, scope: str, media: MediaMode | None = None) -> Declared:
        """Return what is declared now to a client of the server `scope`, or of all if it is empty.

        While one of the servers is starting, that is every capability: a client never asks for
        what was not declared to it.

        Args:
            scope: The server that the client sees; empty means all.
            media: How the client wants images and audio; None means the default.
        """
        introduced = await self._catalog.introduced()
        if introduced is None:
            return EVERYTHING
        known = self._cached.get(scope)
        if known is not None and known[0] is introduced:
            declared = known[1]
        else:
            declared = _declared(introduced, scope)
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            self._cached[scope] = introduced, declared
        if (media or self._media) == "links":
            return Declared(declared.capabilities | {"resources"}, declared.extensions)
        return declared

    async def settle(self, live: LiveSession) -> None:
        """Take what is declared now for what another front, or an earlier run, has declared."""
        if live.declared is None:
            live.declared = await self.declared(live.scope)

    async def check(self, request: Request) -> None:
        """Reject a method that was not declared to the client's session, and is not now.

        Raises:
            JsonRpcError: METHOD_NOT_FOUND, or INVALID_PARAMS.
        """
        method = request.message.method
        capability = CAPABILITY_OF.get(method)
        if capability is None:
            return
        live = request.carried.protocol
        if live is not None and live.declared and capability in live.declared.capabilities:
            return
        if capability in (await self.declared(request.scope, request.media)).capabilities:
            return
        if method == "resources/read":
            uri = parse_params(request.message, ResourceParams).uri
            if artifact_ref(uri) is not None:
                return  # one request can ask for links to media, whatever servers have
        raise JsonRpcError(
            METHOD_NOT_FOUND,
            f"{method} is not available: no server that this client sees has "
            f"{_NAMED.get(capability, capability)}.",
        )


def _declared(introduced: Collection[ServerIntroduction], scope: str) -> Declared:
    seen = [said for said in introduced if not scope or said.server_id == scope]
    extensions = tuple(sorted(_HONOURED & {name for said in seen for name in said.extensions}))
    pending = getattr(introduced, "pending", ())
    if scope in pending if scope else pending:
        return Declared(EVERYTHING.capabilities, extensions)
    told = {name for said in seen for name in said.capabilities}
    return Declared(frozenset(name for name in SERVER_CAPABILITIES if name in told), extensions)
