"""Hearing from a modern server that its tools changed.

Legacy servers say so unasked; modern ones on a stream that has to be asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND

from leaseway.data_plane.mcp.peer import Peer
from leaseway.wire.backoff import Backoff

__all__ = ["listen_to_changes"]

_RELISTEN: Final = Backoff(initial=1.0, maximum=60.0)


async def listen_to_changes(session: ClientSession, peer: Peer, on_gap: Callable[[], None]) -> None:
    """Keep the stream of changes open until the connection ends, where the server has one.

    The changes themselves are seen by the connection's inbox.

    Args:
        session: The negotiated session.
        peer: Its connection.
        on_gap: Called when a stream was opened again: what happened between two is lost.
    """
    capabilities = session.server_capabilities
    tools = capabilities.tools if capabilities is not None else None
    if not peer.era.modern or tools is None or not tools.list_changed:
        return
    failures, again = 0, False
    while not peer.closed.is_set():
        try:
            async with listen(session, tools_list_changed=True) as changes:
                if again:
                    on_gap()
                failures, again = 0, True
                async for _ in changes:
                    pass
        except MCPError as error:
            if error.error.code == METHOD_NOT_FOUND:
                return
            failures += 1
        except SubscriptionLost:
            failures += 1
        await asyncio.sleep(_RELISTEN.ceiling(failures))
