"""What a person sees of a call that needs approval: all of it, or the call is refused. Pure.

A person decides on a text, the server runs bytes. Both are made here from the same parsed values,
so that nothing can run that was not on the page: not a second value of a duplicate key, not a
member beyond a limit, not a redacted one, not a character that draws nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from leaseway.data_plane.audit.redact import called_secrets
from leaseway.wire.bounds import KIB, MAX_APPROVAL
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.text.visible_text import unmistakable

_MAX_DEPTH: Final = 64
"""Objects and lists inside one another; deeper ones cannot be read by a person."""
_MAX_NAMED: Final = 3

HasSecret = Callable[[str | None, str], bool]
"""Whether a member of this name (None in a list) with this text would be redacted in records."""


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """A call as a person sees it, and as it runs.

    Attributes:
        arguments: The arguments that the server gets, as JSON with sorted keys.
        shown_arguments: The same for people: JSON with the same meaning, without invisible
            characters. The tool's declared arguments come first.
        shown_extra: What else of the caller's reaches the server, as a JSON object with `_meta`,
            `inputResponses` and `requestState`; empty if there is nothing.
    """

    arguments: bytes
    shown_arguments: str
    shown_extra: str


def view_call(
    name: str,
    arguments: bytes,
    extra: dict[str, Any],
    declared: list[str],
    has_secret: HasSecret,
) -> ApprovalView:
    """Return what a person sees of a call, and the arguments that run if he approves.

    Args:
        name: The tool's qualified name, for messages.
        arguments: The caller's arguments, a JSON object.
        extra: What else of the caller's reaches the server.
        declared: The names of the tool's declared arguments, the required ones first.
        has_secret: Whether a member must not be shown.

    Raises:
        Fault: PERMISSION_DENIED: a part of the call cannot be shown to a person.
    """
    if len(arguments) > MAX_APPROVAL:
        raise _too_long(name)
    try:
        parsed = msgspec.json.decode(arguments)
        canonical = json.dumps(parsed, allow_nan=False, sort_keys=True, separators=(",", ":"))
        ranks = {argument: rank for rank, argument in enumerate(declared)}
        ordered = sorted(parsed.items(), key=lambda item: (ranks.get(item[0], len(ranks)), item[0]))
        texts = [_encode(dict(ordered)), _encode(extra) if extra else ""]
    except (ValueError, RecursionError):
        raise _refusal(name, "its arguments are nested too deeply or are no plain JSON") from None
    shown_arguments, shown_extra = map(unmistakable, texts)
    if len(shown_arguments) + len(shown_extra) > MAX_APPROVAL:
        raise _too_long(name)
    secret = [
        *_secret_paths(parsed, "", has_secret, 0),
        *_secret_paths(extra, "", has_secret, 0),
    ]
    if None in secret:
        raise _refusal(name, f"its arguments are nested more than {_MAX_DEPTH} levels deep")
    if secret:
        named = ", ".join(f"'{unmistakable(path or '')[:64]}'" for path in secret[:_MAX_NAMED])
        raise _refusal(
            name,
            f"{named} look like secrets, which are not shown. Give the server its secrets with "
            "`env` or `headers` of its entry, or rename the argument if it is none",
        )
    return ApprovalView(canonical.encode(), shown_arguments, shown_extra)


def _encode(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _secret_paths(value: Any, path: str, has_secret: HasSecret, depth: int) -> Iterator[str | None]:
    """Yield the paths of members that must not be shown, and None for what is too deep."""
    if depth > _MAX_DEPTH:
        yield None
        return
    members: Any = ()
    called: Collection[str] = ()
    if isinstance(value, dict):
        members = value.items()
        called = called_secrets(value, lambda name: has_secret(name, ""))
    elif isinstance(value, list):
        members = ((None, item) for item in value)
    for name, item in members:
        inner = path if name is None else f"{path}.{name}" if path else name
        text = item if isinstance(item, str) else ""
        if name in called or has_secret(name, text):
            yield inner
        else:
            yield from _secret_paths(item, inner, has_secret, depth + 1)


def _too_long(name: str) -> Fault:
    return _refusal(name, f"it is longer than {MAX_APPROVAL // KIB} KiB")


def _refusal(name: str, why: str) -> Fault:
    return Fault(
        Reason.PERMISSION_DENIED,
        f"This call of {name} needs a person's approval, and cannot be shown to a person: {why}.",
    )
