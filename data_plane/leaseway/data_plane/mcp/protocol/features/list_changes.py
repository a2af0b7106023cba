"""Hearing from a modern server that what it lists changed.

Legacy servers say so unasked; modern ones on a stream that has to be asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, ServerCapabilities

from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.wire.timing.backoff import Backoff

_logger = logging.getLogger(__name__)
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
    tools, prompts, resources = _told_of(capabilities)
    if not peer.era.modern or not (tools or prompts or resources):
        return
    failures, again = 0, False
    while not peer.closed.is_set():
        try:
            async with listen(
                session,
                tools_list_changed=tools,
                prompts_list_changed=prompts,
                resources_list_changed=resources,
            ) as changes:
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
        except Exception:  # later changes of its lists must not go unheard for that
            failures += 1
            _logger.exception("The server %s can't be listened to; tried again.", peer.server)
        await asyncio.sleep(_RELISTEN.ceiling(failures))


def _told_of(capabilities: ServerCapabilities | None) -> tuple[bool, bool, bool]:
    """Return whether the server tells of changes of its tools, its prompts, its resources."""
    if capabilities is None:
        return False, False, False
    tools, prompts, resources = (
        kind is not None and bool(kind.list_changed)
        for kind in (capabilities.tools, capabilities.prompts, capabilities.resources)
    )
    return tools, prompts, resources
