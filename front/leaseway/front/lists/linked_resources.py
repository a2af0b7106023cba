"""Which server has named a resource in a result, so that its client can read it by the URI alone.

Servers link in results to resources that they do not list, and two servers may use the same URI. A
client of one server is asked for nothing more; for clients that see all servers, the front
remembers who has named what. Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from leaseway.wire.sharing.newest import Newest

_MARK: Final = b'"resource'
"""What an item contains that names a resource. In a text, such quotes are escaped."""
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
    content: msgspec.Raw = msgspec.Raw(b"[]")


class _Result(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"[]")
    messages: msgspec.Raw = msgspec.Raw(b"[]")


_decode: Final = msgspec.json.Decoder(_Result).decode
_decode_message: Final = msgspec.json.Decoder(_Message).decode
_decode_item: Final = msgspec.json.Decoder(_Item).decode
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class LinkedResources:
    """The resources that servers have named in results for one caller.

    A session of the protocol has its own. What is named outside of one counts for all requests of
    the caller whose session has not named the same URI.
    """

    def __init__(self) -> None:
        self._servers: Newest[tuple[str, str], str] = Newest(_MAX_LINKS)

    def learn(self, session: str, server: str, payload: bytes) -> None:
        """Remember the resources that a result of a tool or a prompt names.

        Args:
            session: The id of the protocol's session, or empty.
            server: The id of the server.
            payload: Its result.
        """
        if payload.find(_MARK) < 0:
            return
        try:
            result = _decode(payload)
        except (ValueError, RecursionError):
            return  # no valid result; the client decides
        found = (*_naming(result.content), *_of_messages(result.messages))
        for encoded in found[-2 * _MAX_LINKS :]:  # of more, the first would be forgotten again
            try:
                item = _decode_item(encoded)
            except ValueError:
                continue  # an item of another kind, or an invalid one, costs itself
            for uri in (item.uri, item.resource.uri if item.resource is not None else ""):
                if 0 < len(uri) <= _MAX_URI:
                    self._servers[session, uri] = server

    def server_of(self, session: str, uri: str) -> str | None:
        """Return the server that has named a resource last, or None."""
        return self._servers.get((session, uri)) or self._servers.get(("", uri))


def _naming(encoded: msgspec.Raw) -> list[msgspec.Raw]:
    """Return the items of a list that may name a resource; of anything else, that alone."""
    items = _decode_items(encoded) if bytes(encoded).startswith(b"[") else [encoded]
    return [item for item in items if _MARK in bytes(item)]


def _of_messages(encoded: msgspec.Raw) -> list[msgspec.Raw]:
    found: list[msgspec.Raw] = []
    for message in _naming(encoded)[-_MAX_LINKS:]:
        try:
            found += _naming(_decode_message(message).content)
        except ValueError:
            continue
    return found
