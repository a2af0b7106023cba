"""Answers to what servers ask, brought into MCP's shape. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from leaseway.wire.bounds import MAX_ASK
from leaseway.wire.mcp_methods import ELICIT, SAMPLE

__all__ = ["UnusableAnswer", "encode_answer", "roots_result"]

_ACTIONS: Final = ("accept", "decline", "cancel")
_ROLES: Final = ("user", "assistant")


class UnusableAnswer(Exception):
    """Why a question has no answer: the end of a sentence, without a full stop."""


def encode_answer(method: str, value: object) -> bytes:
    """Return what a handler returned as an MCP result in JSON.

    Args:
        method: What was asked.
        value: A mapping, or a pydantic model.

    Raises:
        UnusableAnswer: It has not the shape that the method wants, or JSON cannot hold it.

    """
    plain = _plain(value)
    if not isinstance(plain, Mapping):
        raise UnusableAnswer(
            f"a handler of {method} returns a mapping or a pydantic model, not "
            f"{type(value).__name__}"
        )
    present = {member: part for member, part in plain.items() if part is not None}
    try:
        encoded = json.dumps(present, ensure_ascii=False, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UnusableAnswer(
            f"JSON cannot hold what the handler returned ({type(error).__name__})"
        ) from None
    if len(encoded) > MAX_ASK:
        raise UnusableAnswer(
            f"what the handler returned takes {len(encoded)} bytes as JSON, of at most {MAX_ASK}"
        )
    check = _CHECKS.get(method)
    if check is not None:
        check(json.loads(encoded))
    return encoded


def roots_result(roots: object) -> dict[str, Any]:
    """Return roots as the MCP result of `roots/list`.

    Raises:
        TypeError: They are no sequence of URIs or of mappings that hold one.
        ValueError: One is no `file://` URI.

    """
    if isinstance(roots, str) or not isinstance(roots, Sequence):
        raise TypeError(
            "roots is a list of file:// URIs, or of mappings with `uri` and `name`, not "
            f"{type(roots).__name__}."
        )
    return {"roots": [_root(root) for root in roots]}


def _root(root: object) -> dict[str, Any]:
    entry = {"uri": root} if isinstance(root, str) else root
    if not isinstance(entry, Mapping) or not isinstance(entry.get("uri"), str):
        raise TypeError(
            "A root is a file:// URI, or a mapping with `uri` and perhaps `name`, not "
            f"{type(root).__name__}."
        )
    if not entry["uri"].startswith("file://"):
        raise ValueError(
            f"Root {entry['uri']!r} is no file:// URI; pathlib.Path(...).absolute().as_uri() "
            "makes one of a path."
        )
    return dict(entry)


def _plain(value: object) -> object:
    """Return what a pydantic model stands for; anything else as it is."""
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(by_alias=True, exclude_none=True, mode="json")
    return value


def _check_elicitation(result: dict[str, Any]) -> None:
    if result.get("action") not in _ACTIONS:
        raise UnusableAnswer(
            "on_elicitation returns {'action': …, 'content': …} whose action is "
            f"{', '.join(_ACTIONS)}"
        )
    content = result.get("content", {})
    if not isinstance(content, Mapping):
        raise UnusableAnswer(
            "the content that on_elicitation returns is a mapping of the form's fields, not "
            f"{type(content).__name__}"
        )


def _check_sampling(result: dict[str, Any]) -> None:
    content = result.get("content")
    items = content if isinstance(content, list) else [content]
    if (
        result.get("role") not in _ROLES
        or not isinstance(result.get("model"), str)
        or not all(isinstance(item, Mapping) and "type" in item for item in items)
    ):
        raise UnusableAnswer(
            "on_sampling returns {'role': 'assistant', 'content': {'type': 'text', 'text': …}, "
            "'model': …}"
        )


_CHECKS: Final = {
    ELICIT: _check_elicitation,
    SAMPLE: _check_sampling,
}
