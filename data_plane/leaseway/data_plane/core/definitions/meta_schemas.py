"""Whether a schema is one by its own draft, which official clients in Python check. Pure."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

import jsonschema_rs

from leaseway.data_plane.core.definitions.members import Changes
from leaseway.wire.bounds import KIB
from leaseway.wire.messages.json_schema import MAPS
from leaseway.wire.messages.portable_json import encode

_NEWEST: Final = "https://json-schema.org/draft/2020-12/schema"
_DRAFTS: Final = {
    "draft/2020-12": _NEWEST,
    "draft/2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft-07": "http://json-schema.org/draft-07/schema#",
    "draft-06": "http://json-schema.org/draft-06/schema#",
}
"""The meta-schemas of the drafts that official clients know, by what names them."""
_is_draft: Final = re.compile(r"https?://json-schema\.org/([^/]+(?:/[^/]+)?)/schema#?").fullmatch
_MAX_SIZE: Final = 64 * KIB
"""Bytes of a schema that is corrected, on the event loop."""
_MAX_WRONG: Final = 64
"""Keywords that are corrected in one schema."""
_OF_NAMES: Final = frozenset({"required"})
"""Keywords whose values are names, each once."""


def leave_out_invalid(schema: dict[str, Any], path: str, changes: Changes) -> None:
    """Leave out the keywords of a schema whose values its draft does not have, in place.

    An unknown draft is left out, too: official clients for JavaScript refuse its schema.

    Args:
        schema: The schema.
        path: What it is, for operators.
        changes: Where that is recorded.
    """
    draft = _draft_of(schema.get("$schema", _NEWEST))
    if draft is None:
        changes.add(f"{path} is of a draft that clients do not know")
        del schema["$schema"]
    check = _check_of(draft or _NEWEST)
    if check.is_valid(schema) or len(encode(schema)) > _MAX_SIZE:
        return
    for _ in range(_MAX_WRONG):
        try:
            check.validate(schema)  # all errors at once would each have a copy of what is wrong
            return
        except jsonschema_rs.ValidationError as error:
            place = tuple(error.instance_path)
        if not place:
            return
        changes.add(f"{path} has a keyword with a wrong value ({_keyword(place)})")
        _leave_out(schema, place)


def _draft_of(name: Any) -> str | None:
    found = _is_draft(name) if isinstance(name, str) else None
    return _DRAFTS.get(found[1]) if found is not None else None


@functools.cache
def _check_of(draft: str) -> Any:
    return jsonschema_rs.validator_for({"$schema": draft, "$ref": draft})


def _keyword(place: tuple[str | int, ...]) -> str:
    return next((str(step)[:40] for step in reversed(place) if isinstance(step, str)), "")


def _leave_out(schema: dict[str, Any], place: tuple[str | int, ...]) -> None:
    """Leave out what is at a place, if it is still there."""
    *way, last = place
    parent: Any = schema
    for step in way:
        try:
            parent = parent[step]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(parent, list) and way and way[-1] in _OF_NAMES:
        parent[:] = [name for name in parent if isinstance(name, str)]
    elif isinstance(parent, list):
        if isinstance(last, int) and last < len(parent):
            parent[last] = {}
    elif isinstance(parent, dict) and way and way[-1] in MAPS:
        parent[last] = {}
    elif isinstance(parent, dict) and last in _OF_NAMES and isinstance(parent.get(last), list):
        parent[last] = [*dict.fromkeys(name for name in parent[last] if isinstance(name, str))]
    elif isinstance(parent, dict) and last in parent:
        value = parent.pop(last)
        if last == "items" and isinstance(value, list):  # as older drafts have it
            parent |= {"prefixItems": value} if value else {}
            if "additionalItems" in parent:
                parent["items"] = parent.pop("additionalItems")
