"""Results of servers, made fit for the client's era. Pure.

Most results go on in the bytes that the server sent. Only one that names what belongs to the
connection behind the front is taken apart, and then only its outermost members.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from leaseway.front.greeting import CACHE_HINTS
from leaseway.front.messages import encode

_RESERVED: Final = "io.modelcontextprotocol/"
_MARKS: Final = (b"resultType", b"io.modelcontextprotocol", b"\\u")
"""What a result may hold whose outermost members have to be looked at; an escape may hide one."""
_TYPED: Final = b'{"resultType":"complete"'

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def fit_result(payload: bytes, *, modern: bool, cached: bool = False) -> bytes:
    """Return a server's result as a client of an era is to see it.

    Args:
        payload: The result as the server sent it: a JSON object, or nothing for an empty one.
        modern: Whether the client speaks 2026-07-28 or newer, where results have a type.
        cached: Whether the era wants to know how long the result may be kept.
    """
    payload = payload or b"{}"
    for mark in _MARKS:
        if mark in payload:
            return _rewritten(payload, modern, cached)
    if modern and cached:
        return _rewritten(payload, modern, cached)
    if not modern:
        return payload
    rest = payload.lstrip()[1:].lstrip()
    return _TYPED + (b"}" if rest == b"}" else b"," + rest)


def strip_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Return a definition's or result's `_meta` without what belongs to one connection."""
    return {key: value for key, value in meta.items() if not key.startswith(_RESERVED)}


def _rewritten(payload: bytes, modern: bool, cached: bool) -> bytes:
    members: dict[str, Any] = dict(_members(payload))
    kind = members.pop("resultType", None)
    if "_meta" in members:
        meta = msgspec.json.decode(members["_meta"])
        kept = strip_meta(meta) if isinstance(meta, dict) else {}
        if kept:
            members["_meta"] = kept
        else:
            del members["_meta"]
    if modern:
        members["resultType"] = kind if kind is not None else "complete"
        if cached:
            members = {**CACHE_HINTS, **members}
    return encode(members)
