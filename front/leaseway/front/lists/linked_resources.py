"""Which server has named a resource in a result, so that its client can read it by the URI alone.

Servers link in results to resources that they do not list, and two servers may use the same URI. A
client of one server is asked for nothing more; for clients that see all servers, the front
remembers who has named what. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

MARK: Final = b'"resource'
"""What a result contains that names a resource: the type of an item."""
_MAX_LINKS: Final = 1024
_MAX_URI: Final = 1024
"""Resources of one caller, the newest, and the characters of their URIs; a longer one is not
remembered."""


class _Resource(msgspec.Struct):
    uri: str = ""


class _Item(msgspec.Struct):
    uri: str = ""
    resource: _Resource | None = None


class _Message(msgspec.Struct):
    content: _Item | list[_Item] | None = None


class _Result(msgspec.Struct):
    content: list[_Item] = []
    messages: list[_Message] = []


_decode: Final = msgspec.json.Decoder(_Result).decode


class LinkedResources:
    """The resources that servers have named in results for one caller.

    A session of the protocol has its own. What is named outside of one counts for all requests of
    the caller whose session has not named the same URI.
    """

    def __init__(self) -> None:
        self._servers: OrderedDict[tuple[str, str], str] = OrderedDict()

    def learn(self, session: str, server: str, payload: bytes) -> None:
        """Remember the resources that a result of a tool or a prompt names.

        Args:
            session: The id of the protocol's session, or empty.
            server: The id of the server.
            payload: Its result.
        """
        if payload.find(MARK) < 0:
            return
        try:
            result = _decode(payload)
        except (ValueError, RecursionError):
            return  # no valid result; the client decides
        for item in (*result.content, *_items(result.messages)):
            for uri in (item.uri, item.resource.uri if item.resource is not None else ""):
                if 0 < len(uri) <= _MAX_URI:
                    self._servers[session, uri] = server
                    self._servers.move_to_end((session, uri))
        while len(self._servers) > _MAX_LINKS:
            self._servers.popitem(last=False)

    def server_of(self, session: str, uri: str) -> str | None:
        """Return the server that has named a resource last, or None."""
        return self._servers.get((session, uri)) or self._servers.get(("", uri))


def _items(messages: list[_Message]) -> list[_Item]:
    found: list[_Item] = []
    for message in messages:
        content = message.content
        if isinstance(content, list):
            found += content
        elif content is not None:
            found.append(content)
    return found
