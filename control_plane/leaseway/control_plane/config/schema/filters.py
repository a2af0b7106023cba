"""Readers of the filters and transforms of tool, prompt and resource names.

See design.md#configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.tables import (
    keyed,
    keys_from,
    record_of,
    schema_of,
    unique_entries,
)
from leaseway.control_plane.config.schema.values import (
    BadValue,
    Reader,
    kind_of,
    list_of,
    plain_text,
    reader,
    suggestion,
)
from leaseway.control_plane.config.tree.yaml_tree import Items, Leaf, Table, TableEntry, Tree
from leaseway.spec.filters.names import FILTER_KEYS, NameFilter
from leaseway.spec.keys import keys_of
from leaseway.spec.model import TRANSFORM_KEYS, Transform
from leaseway.wire.names import MAX_ORIGINAL_NAME, ORIGINAL_NAME_RULE, has_name_characters

SERVER_PLACEHOLDER: Final = "{server}"
"""Stands for the server's id in the texts that a transform adds or removes."""

MAX_PATTERNS: Final = 1_000
MAX_PATTERN: Final = 1_024
MAX_TRANSFORMS: Final = 100

_OF_OTHER_PATTERNS: Final = re.compile(r"[][(){}?^$|\\]")
"""Characters of regular expressions, files' patterns and clients' rules that few names have."""
_NAME_PART: Final = re.compile(r"[a-zA-Z0-9_-]*")


def _no_fault(text: str) -> str:
    return ""


def name_pattern_fault(text: str) -> str:
    """Return why a pattern can match no name, or none that is meant by it, or an empty text."""
    if len(text.replace("*", "")) > MAX_ORIGINAL_NAME or not has_name_characters(text):
        return f"a name has {ORIGINAL_NAME_RULE}"
    other = _OF_OTHER_PATTERNS.search(text)
    if "*" in text and other is not None:
        # It would hold for nothing, which is not told of patterns: there may be tools to come.
        return (
            f"only '*' is special, and beside it {other[0]!r} looks like a part of a pattern, too"
        )
    return ""


def _filter(key: str, noun: str, fault_of: Callable[[str], str]) -> Reader[NameFilter]:
    """Return a reader of the filter under a key.

    `fault_of` returns why a pattern can match no name, or an empty text.
    """
    plain = plain_text(longest=MAX_PATTERN)

    @reader(plain.schema)
    def read(node: Tree, where: Where) -> str:
        text = plain.read(node, where)
        if not text:
            fault = f"is empty; write '*' to match every {noun}"
        elif why := fault_of(text):
            fault = f"can match no {noun}: {why}"
        else:
            return text
        # Keep the pattern: without it the whitelist could be empty, which lets every name pass.
        where.warning(node.at, IssueReason.BAD_PATTERN, f"The pattern {quoted(text)} {fault}.")
        return text

    patterns = list_of(read, MAX_PATTERNS)

    @reader({**patterns.schema, "minItems": 1})
    def read_whitelist(node: Tree, where: Where) -> tuple[str, ...]:
        if isinstance(node, Items) and not node.items:
            raise BadValue(
                f"{quoted(where.key)} is empty. To expose no {noun}, write \"blacklist: ['*']\";"
                " to expose all, remove it."
            )
        return patterns.read(node, where)

    readers = {"whitelist": read_whitelist, "blacklist": patterns}
    return record_of(FILTER_KEYS, NameFilter, f"'{key}'", readers)


tools: Final = _filter("tools", "tool", name_pattern_fault)
"""Reads a `NameFilter` of original tool names."""

prompts: Final = _filter("prompts", "prompt", name_pattern_fault)
"""Reads a `NameFilter` of prompt names."""

resources: Final = _filter("resources", "resource", _no_fault)
"""Reads a `NameFilter` of URIs, which may contain any character."""


_PLAIN_PART: Final = plain_text(longest=MAX_PATTERN)


@reader({"type": "string", "pattern": r"^([a-zA-Z0-9_-]|\{server\})*$"})
def _part(node: Tree, where: Where) -> str:
    text = _PLAIN_PART.read(node, where)
    if _NAME_PART.fullmatch(text.replace(SERVER_PLACEHOLDER, "")):
        return text
    raise BadValue(
        f"{quoted(text)} can't be part of a tool name: names consist of a-z, A-Z, 0-9, '_' and"
        f" '-', and only {SERVER_PLACEHOLDER} is replaced.",
        IssueReason.BAD_TRANSFORM,
    )


@reader(_PLAIN_PART.schema)
def _removed_part(node: Tree, where: Where) -> str:
    text = _PLAIN_PART.read(node, where)
    if has_name_characters(text):
        return text
    raise BadValue(
        f"{quoted(text)} can't be part of a server's tool name: one has {ORIGINAL_NAME_RULE}.",
        IssueReason.BAD_TRANSFORM,
    )


@reader({**_removed_part.schema, "minLength": 1})
def _replaced_part(node: Tree, where: Where) -> str:
    text = _removed_part.read(node, where)
    if text:
        return text
    message = "'remove' is empty: name the text that is replaced, such as '.'."
    raise BadValue(message, IssueReason.BAD_TRANSFORM)


def _replacement(remove: str, add: str = "") -> Transform:
    return Transform("prefix", add, remove)


def _replace_all(remove: str, add: str = "") -> Transform:
    return Transform("replace", add, remove)


_REPLACEMENT: Final = record_of(
    keys_of(Transform), _replacement, "a prefix", {"remove": _removed_part, "add": _part}
)
_replace: Final = record_of(
    keys_of(Transform), _replace_all, "a replacement", {"remove": _replaced_part, "add": _part}
)


@reader({"anyOf": [_part.schema, _REPLACEMENT.schema]})
def _prefix(node: Tree, where: Where) -> Transform:
    if isinstance(node, Leaf):
        return Transform("prefix", _part.read(node, where))
    return _REPLACEMENT.read(node, where)


@reader(_part.schema)
def _suffix(node: Tree, where: Where) -> Transform:
    return Transform("suffix", _part.read(node, where))


_STEPS: Final = keys_from(
    TRANSFORM_KEYS, {"suffix": _suffix, "prefix": _prefix, "replace": _replace}
)


@reader({"anyOf": [schema_of(keyed(key), required=(key.name,)) for key in _STEPS.values()]})
def _transform(node: Tree, where: Where) -> Transform:
    entry = _only_entry(node, where)
    place = where.child(entry)
    key = _STEPS.get(entry.name)
    if key is None:
        message = f"{quoted(entry.name)} is not a transform: {suggestion(entry.name, _STEPS)}"
        place.error(entry.at, IssueReason.UNKNOWN_KEY, message)
        raise BadValue  # already reported
    step: Transform | None = key.read(entry.value, place)
    if step is None:
        raise BadValue  # already reported
    return step


def _only_entry(node: Tree, where: Where) -> TableEntry:
    entries = unique_entries(node, where) if isinstance(node, Table) else []
    if len(entries) == 1:
        return entries[0]
    found = f"has {len(entries)} keys" if isinstance(node, Table) else f"is {kind_of(node)}"
    raise BadValue(
        f"{quoted(where.key)} must be one of {{prefix: TEXT}}, {{prefix: {{remove: TEXT, add:"
        f" TEXT}}}}, {{replace: {{remove: TEXT, add: TEXT}}}} and {{suffix: TEXT}}, but it {found}."
        " Write steps as items of the list.",
        IssueReason.BAD_TRANSFORM,
    )


transforms: Final = list_of(_transform, MAX_TRANSFORMS)
"""Reads a tuple of `Transform` that still contain `{server}`."""


def for_server(steps: Sequence[Transform], server_id: str) -> tuple[Transform, ...]:
    """Return transforms with `{server}` replaced by a server's id."""
    return tuple(
        replace(
            step,
            add=step.add.replace(SERVER_PLACEHOLDER, server_id),
            remove=step.remove.replace(SERVER_PLACEHOLDER, server_id),
        )
        for step in steps
    )
