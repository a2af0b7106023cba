"""Reads progress reports and log messages, with the members that MCP does not name. Pure.

Most have none of these, and are read without looking for them.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from leaseway.wire import bounds
from leaseway.wire.messages.mcp import is_reserved_meta

_logger = logging.getLogger(__name__)


class Progress(msgspec.Struct, gc=False):
    """The params of `notifications/progress`."""

    progressToken: int | str | float | None = None  # noqa: N815 - MCP's name
    progress: float = 0.0
    total: float | None = None
    message: str | None = None


class Log(msgspec.Struct, gc=False):
    """The params of `notifications/message`."""

    level: str = "info"
    logger: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"null")


class _OnlyProgress(Progress, gc=False, forbid_unknown_fields=True):
    """A report without other members."""


class _OnlyLog(Log, gc=False, forbid_unknown_fields=True):
    """A message without other members."""


_decode_progress: Final = msgspec.json.Decoder(Progress).decode
decode_log: Final = msgspec.json.Decoder(Log).decode
_decode_only_progress: Final = msgspec.json.Decoder(_OnlyProgress).decode
_decode_only_log: Final = msgspec.json.Decoder(_OnlyLog).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_progress(params: msgspec.Raw) -> tuple[Progress, bytes]:
    """Return a report and its other members; raises `ValueError` for anything else."""
    try:
        return _decode_only_progress(params), b""
    except msgspec.ValidationError:
        return _decode_progress(params), _others(params, Progress)


def read_log(params: msgspec.Raw) -> tuple[Log, bytes]:
    """Return a log message and its other members; raises `ValueError` for anything else."""
    try:
        return _decode_only_log(params), b""
    except msgspec.ValidationError:
        return decode_log(params), _others(params, Log)


def _others(params: msgspec.Raw, known: type[msgspec.Struct]) -> bytes:
    """Return the other members as a JSON object, or empty if there are none or too many.

    The protocol's own keys of `_meta` belong to the connection, such as the id of a subscription.
    """
    members: dict[str, Any] = dict(_members(params))
    for name in known.__struct_encode_fields__:
        members.pop(name, None)
    if "_meta" in members:
        meta = _members(members["_meta"]) if bytes(members["_meta"])[:1] == b"{" else {}
        members["_meta"] = {key: value for key, value in meta.items() if not is_reserved_meta(key)}
        if not members["_meta"]:
            del members["_meta"]
    extra = msgspec.json.encode(members) if members else b""
    if len(extra) <= bounds.MAX_META:
        return extra
    _logger.debug("%d bytes of unknown members of a notification were dropped.", len(extra))
    return b""
