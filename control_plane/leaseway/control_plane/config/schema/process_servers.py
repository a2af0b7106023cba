"""Readers of the keys of servers that run as processes: images, Python classes, the builtin one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from leaseway.control_plane.config.schema import credentials, fields, filters
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.tables import Key, entries_of, keyed, keys_in, record
from leaseway.control_plane.config.schema.values import (
    BadValue,
    Reader,
    boolean,
    checked,
    choice,
    list_of,
    plain_text,
    reader,
    suggestion,
    text,
    worker_text,
)
from leaseway.control_plane.config.tree.yaml_tree import Items, Leaf, Table, TableEntry, Tree
from leaseway.spec.builtin import (
    BUILTIN_TOOLS,
    FILE_TOOLS,
    command_fault,
    command_words,
    host_fault,
)
from leaseway.spec.kinds.builtin import Builtin
from leaseway.spec.kinds.container import MAX_IMAGE, image_fault
from leaseway.spec.model import Limits, Sandbox
from leaseway.spec.name_filters import NameFilter
from leaseway.wire.bounds import KIB

MAX_JSON_TEXT: Final = 64 * KIB
"""Characters of a `config` or `podTemplate` as JSON; a process accepts no variable over 128 KiB."""

MAX_ENTRIES: Final = 100
_MAX_DEPTH: Final = 16
_MAX_PATH: Final = 4_096
_MAX_NUMBER: Final = 2**63
_BASIC, _STRICT = "basic", "strict"
_IDENTIFIER: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_MODULE: Final = re.compile(rf"{_IDENTIFIER}(\.{_IDENTIFIER})*")
_TEMPLATE_KEYS: Final = ("metadata", "spec")
_TEXT: Final = text()
_WORKER_TEXT: Final = worker_text()


def _writable_fault(path: str) -> str | None:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts:
        return f"must be an absolute path without '..', but is {quoted(path)}."
    if not path.strip("/"):
        return "is the root folder: a sandbox with write access everywhere protects nothing."
    return None


_WRITABLE: Final = checked(plain_text(longest=4_096, empty=False), _writable_fault)


def _enabled_sandbox(
    level: str = _BASIC, network: bool = False, writable_paths: tuple[str, ...] = ()
) -> Sandbox:
    return Sandbox(True, network, writable_paths, strict=level == _STRICT)


limits: Final = record(keys_in(Limits), Limits, "'limits'")
"""Reads the limits of one instance's processes."""

_SANDBOX: Final = record(
    keyed(
        Key("level", choice(_BASIC, _STRICT)),
        Key("network", boolean),
        Key("writable", list_of(_WRITABLE, 100), "writable_paths"),
    ),
    _enabled_sandbox,
    "'sandbox'",
)


@reader({"anyOf": [boolean.schema, {"enum": [_STRICT]}, _SANDBOX.schema]})
def sandbox(node: Tree, where: Where) -> Sandbox:
    """Read what holds a process: a level, or its parts."""
    if isinstance(node, Leaf) and isinstance(node.value, bool):
        return Sandbox(enabled=node.value)
    if isinstance(node, Leaf) and node.value == _STRICT:
        return Sandbox(enabled=True, strict=True)
    if isinstance(node, Table):
        return _SANDBOX.read(node, where)
    raise BadValue(
        f"{quoted(where.key)} must be true, false, strict or"
        " {level: …, network: …, writable: […]}.",
        IssueReason.WRONG_TYPE,
    )


def _image_fault(name: str) -> str | None:
    return None if "${" in name else image_fault(name)


image: Final = checked(worker_text(longest=MAX_IMAGE, empty=False), _image_fault)
"""Reads the image of a stdio server; it may contain `${NAME}`."""


@reader({"type": "object"})
def pod_template(node: Tree, where: Where) -> str:
    """Read a PodTemplateSpec as JSON; the Kubernetes API checks its `spec`."""
    unknown = [member for member in entries_of(node, where) if member.name not in _TEMPLATE_KEYS]
    for member in unknown:
        hint = suggestion(member.name, _TEMPLATE_KEYS)
        message = f"{quoted(member.name)} is not a key of a pod template: {hint}"
        where.child(member).error(member.at, IssueReason.UNKNOWN_KEY, message)
    if unknown:
        raise BadValue  # already reported
    return _json_text(node, where, has_references=False)


def check_image(server: TableEntry, values: Mapping[str, Any], where: Where) -> None:
    """Warn of keys that have no effect with an image, or without one."""
    if "image" in values and "inherit_env" in values:
        message = (
            "'inherit_env' has no effect with 'image': a container gets the variables of 'env'"
            " and those of the image."
        )
        _warn_of_key("inherit_env", server, where, message)
    if "pod_template" in values and "image" not in values:
        message = "'podTemplate' has no effect without 'image', which says what its pods run."
        _warn_of_key("podTemplate", server, where, message)


def _identifier(rule: re.Pattern[str], words: str) -> Reader[str]:
    def fault(name: str) -> str | None:
        return None if rule.fullmatch(name) else f"must be {words}, but is {quoted(name)}."

    return checked(plain_text(longest=1_024, empty=False), fault, pattern=rule.pattern)


module: Final = _identifier(_MODULE, "a module as in an import statement, such as tools.weather")
"""Reads the module of a Python server."""

class_name: Final = _identifier(re.compile(_IDENTIFIER), "the name of a class")
"""Reads its class."""


@reader({"type": "object"})
def config(node: Tree, where: Where) -> str:
    """Read a class's configuration: any mapping, as JSON in which references stay references."""
    entries_of(node, where)
    return _json_text(node, where, has_references=True)


_BUILTIN_NAMES: Final = list_of(choice(*BUILTIN_TOOLS), MAX_ENTRIES)


@reader(
    {
        "anyOf": [
            filters.tools.schema,
            {
                "description": "The tools that are on, of a builtin server.",
                **_BUILTIN_NAMES.schema,
                "minItems": 1,
            },
        ]
    }
)
def tools(node: Tree, where: Where) -> NameFilter:
    """Read a filter of tools; for a builtin server also a list of the tools that are enabled."""
    if where.transport != "builtin":
        return filters.tools.read(node, where)
    if isinstance(node, Items):
        names = _BUILTIN_NAMES.read(node, where)
        if len(names) < len(node.items):
            raise BadValue  # already reported
        found = NameFilter(whitelist=tuple(dict.fromkeys(names)))
    else:
        found = filters.tools.read(node, where)
    if found.whitelist and any(found.passes(name) for name in BUILTIN_TOOLS):
        return found
    raise BadValue(
        f"{quoted(where.key)} enables no tool: name the tools that you want, of"
        f" {', '.join(BUILTIN_TOOLS)}."
    )


def _command_fault(text: str) -> str | None:
    try:
        command_words(text)
    except ValueError as error:
        return str(error)
    return None


def _root_fault(text: str) -> str | None:
    return f"{text!r:.200} is not a folder." if text.startswith("-") else None


def _entries(fault_of: Callable[[str], str | None]) -> Reader[tuple[str, ...]]:
    """Return a reader of a list that is not empty."""

    def fault_in(entry: str) -> str | None:
        fault = None if "${" in entry else fault_of(entry)
        return None if fault is None else f"is not valid: {fault}"

    entry = checked(worker_text(longest=_MAX_PATH, empty=False), fault_in)
    entries = list_of(entry, MAX_ENTRIES)

    @reader(entries.schema | {"minItems": 1})
    def read(node: Tree, where: Where) -> tuple[str, ...]:
        if isinstance(node, Items) and not node.items:
            raise BadValue(
                f"{quoted(where.key)} is empty; write at least one entry, or remove the key."
            )
        return entries.read(node, where)

    return read


roots: Final = _entries(_root_fault)
"""Reads the folders that file tools may reach."""

commands: Final = _entries(_command_fault)
"""Reads the command lines that may be executed."""

hosts: Final = _entries(host_fault)
"""Reads the hosts that `http_get` may send requests to."""


def with_enabled_tools(tools: NameFilter, given: Builtin) -> Builtin:
    """Return a builtin server's settings with the tools that a filter enables."""
    on = tuple(name for name in BUILTIN_TOOLS if tools.whitelist and tools.passes(name))
    return Builtin(on, given.roots, given.commands, given.hosts)


def check_builtin(
    server: TableEntry, given: Builtin, written: Container[str], where: Where, *, confined: bool
) -> None:
    """Report tools that must not be on together, missing keys, and keys that no tool uses.

    `given` has the accepted values, `written` the names of all keys. `confined` is whether the
    server has a strict sandbox.
    """
    on = set(given.tools)
    fault = command_fault(on, confined=confined)
    if fault is not None:
        place, at = where.find("tools", server.at)
        place.error(at, IssueReason.BAD_VALUE, fault)
    file_tool = next((name for name in FILE_TOOLS if name in on), None)
    executes = "execute_command" in on
    if file_tool and "roots" not in written:
        message = f"The tool {file_tool} needs 'roots': the folders that it may reach."
        where.missing(server.at, "roots", message)
    if executes and "commands" not in written:
        message = "The tool execute_command needs 'commands': what it may execute, as 'git log *'."
        where.missing(server.at, "commands", message)
    for key, values, is_used in (
        ("roots", given.roots, file_tool or executes),
        ("commands", given.commands, executes),
        ("hosts", given.hosts, "http_get" in on),
    ):
        if values and not is_used:
            message = f"{key!r} has no effect: no tool that is on uses it."
            _warn_of_key(key, server, where, message)


def _warn_of_key(key: str, server: TableEntry, where: Where, message: str) -> None:
    place, at = where.find(key, server.at)
    place.warning(at, IssueReason.KEY_WITHOUT_EFFECT, message)


def _json_text(node: Tree, where: Where, *, has_references: bool) -> str:
    """Return a tree as JSON, in which workers replace references if `has_references`.

    Raises:
        BadValue: It is too long, or a value in it is rejected.
    """
    builder = _JsonBuilder(has_references)
    content = builder.value(node, where, 0)
    if builder.is_rejected:
        raise BadValue  # already reported
    # The launch hash covers the text: written otherwise, it would restart servers on an upgrade.
    written = json.dumps(
        content,
        sort_keys=has_references,
        ensure_ascii=not has_references,
        separators=(",", ":"),
    )
    if len(written) <= MAX_JSON_TEXT:
        return written
    raise BadValue(f"{quoted(where.key)} is longer than {MAX_JSON_TEXT} characters as JSON.")


class _JsonBuilder:
    """Turns a tree into a JSON value, and reports each mistake in it."""

    def __init__(self, has_references: bool) -> None:
        self._has_references = has_references
        self.is_rejected = False

    def value(self, node: Tree, where: Where, depth: int) -> Any:
        try:
            if depth > _MAX_DEPTH:
                raise BadValue(f"{quoted(where.key)} is nested deeper than {_MAX_DEPTH}.")
            match node:
                case Table():
                    return self._table(node, where, depth)
                case Items():
                    items = enumerate(node.items)
                    return [
                        self.value(each, where.item(i, each.at), depth + 1) for i, each in items
                    ]
                case Leaf():
                    return self._leaf(node, where)
        except BadValue as error:
            error.report(node, where)
            self.is_rejected = True

    def _table(self, node: Table, where: Where, depth: int) -> Any:
        entries = entries_of(node, where)
        is_reference = len(entries) == 1 and entries[0].name in fields.REFERENCE_KINDS
        if self._has_references and depth and is_reference:
            value = fields.reference.read(node, where)
            return {value.kind: value.text}
        return {
            entry.name: self.value(entry.value, where.child(entry), depth + 1) for entry in entries
        }

    def _leaf(self, node: Leaf, where: Where) -> Any:
        value = node.value
        if isinstance(value, str):
            value = (_WORKER_TEXT if self._has_references else _TEXT).read(node, where)
            name = where.key.rpartition(".")[2]
            fields.warn_of_credential(node, where, credentials.credential_kind(name, value))
            return value
        is_wide = isinstance(value, int) and abs(value) > _MAX_NUMBER
        if is_wide or (isinstance(value, float) and not -1e308 < value < 1e308):
            raise BadValue(f"{quoted(where.key)} is not a number that JSON can express.")
        return value
