"""What servers are published with, as a client's file: `server.json` of the MCP registry.

It says how each of its packages is started and which values a person has to give. Those become
references: `{secret: NAME}` for secrets, `${NAME}` for others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from leaseway.control_plane.config.formats.client_forms import MCP_SERVERS, find
from leaseway.control_plane.config.formats.published.shapes import faults_of, report
from leaseway.control_plane.config.formats.tool_rules import folded
from leaseway.control_plane.config.schema.issues import IssueReason, Where
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    Tree,
)

_TEMPLATE: Final = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PASSED: Final = re.compile(r"(\w+)=\{(\w+)\}")
_NOTHING: Final[Mapping[str, Tree]] = {}
_RUNTIME: Final = ("runtimeArguments", "runtime_arguments")
_OF_PACKAGE: Final = ("packageArguments", "package_arguments")
_VARIABLES: Final = ("environmentVariables", "environment_variables")
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9]+")
_RUNNERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "npm": ("npx", ("-y",)),
    "pypi": ("uvx", ()),
    "nuget": ("dnx", ("--yes",)),
    "oci": ("docker", ("run", "-i", "--rm")),
}
"""By the kind of registry, the program that starts a package, and its first arguments."""


def is_published(root: Table) -> bool:
    """Return whether a JSON file describes one server: by its packages, or its addresses."""
    root = _description(root)
    keys = {entry.name: entry.value for entry in root.entries}
    return "name" in keys and any(
        find(item, [key]) is not None
        for part, names in (("packages", ("identifier", "name")), ("remotes", ("url",)))
        for item in _items(keys.get(part))
        for key in names
    )


def published_servers(root: Table, where: Where) -> Table | None:
    """Return a published server as a file with `mcpServers`; None, after an issue, if it can't run.

    Its first address counts, else the first package that a worker can start; others are a warning.
    """
    root = _description(root)
    ways = list(_ways(root))
    if not ways:
        kinds = ", ".join(_RUNNERS)
        message = (
            "None of the server's packages can be started by a worker: it starts those of"
            f" {kinds} that use stdio. Write a server with its 'command' or 'url' instead."
        )
        where.fatal(root.at, IssueReason.BAD_VALUE, message)
        return None
    if len(ways) > 1:
        message = (
            f"The server can be reached or started in {len(ways)} ways, of which only the first is"
            " used; its addresses come before its packages."
        )
        where.warning(root.at, IssueReason.KEY_NOT_TAKEN_OVER, message)
    way, members = ways[0]
    if report(faults_of(way), where):
        return None
    left_out = _left_out(way, members)
    if left_out:
        message = (
            f"Optional and without a value, so left out: {', '.join(map(repr, left_out))}. To set"
            " them, convert the file with `leaseway import`, and add them to 'env' or 'headers'."
        )
        where.warning(way.at, IssueReason.KEY_NOT_TAKEN_OVER, message)
    description = find(root, ["description"])
    if description is not None:
        members = (*members, TableEntry("description", description.at, description))
    return one_server(_text(root, "name").rsplit("/", 1)[-1], members, root.at)


def one_server(name: str, members: Sequence[TableEntry], at: Position) -> Table:
    """Return the root of a client's file with one server."""
    server = TableEntry(name, at, Table(at, tuple(members)))
    return _table(at, TableEntry(MCP_SERVERS.root, at, _table(at, server)))


def reference_name(name: str) -> str:
    """Return the name of the variable or secret that stands for a value of a person."""
    found = _NO_NAME.sub("_", name).strip("_").upper()
    return f"_{found}" if found[:1].isdigit() else found


def _description(root: Table) -> Table:
    """Return the description in the registry's answer, which has it under `server`."""
    inner = find(root, ["server"])
    return inner if isinstance(inner, Table) and find(inner, ["name"]) is not None else root


def _ways(root: Table) -> Iterator[tuple[Tree, Sequence[TableEntry]]]:
    """Yield each way to reach or start the server, with its keys, the best first."""
    for remote in _items(find(root, ["remotes"])):
        yield remote, tuple(_remote(remote))
    for package in _items(find(root, ["packages"])):
        kind = folded(_text(package, "registryType", "registry_type", "registry_name"))
        transport = find(package, ["transport", "type"])
        is_process = transport is None or (
            isinstance(transport, Leaf) and transport.value == "stdio"
        )
        if kind in _RUNNERS and is_process:
            yield package, tuple(_package(package, *_RUNNERS[kind]))


def _left_out(way: Tree, members: Sequence[TableEntry]) -> list[str]:
    """Return the variables and headers that a way declares, but that its keys do not set."""
    given = {entry.name for member in members for entry in member.members}
    inputs = _inputs(way, ("headers", *_VARIABLES))
    return [name for name, _ in _named(inputs) if name and name not in given]


def _remote(remote: Tree) -> Iterator[TableEntry]:
    variables = _declared(remote, "headers")
    for entry in remote.entries if isinstance(remote, Table) else ():
        if entry.name == "headers":
            headers = _given(_named(_items(entry.value)), variables)
            yield TableEntry("headers", entry.at, Table(entry.value.at, tuple(headers)))
        elif entry.name == "url" and isinstance(entry.value, Leaf):
            url = _filled(str(entry.value.value), variables)
            yield TableEntry("url", entry.at, Leaf(entry.value.at, url, url))
        elif entry.name in ("type", "transport_type"):
            yield TableEntry("type", entry.at, entry.value)


def _package(package: Tree, program: str, first: tuple[str, ...]) -> Iterator[TableEntry]:
    at = package.at
    declared = _declared(package, *_RUNTIME, *_OF_PACKAGE)
    env = [*_given(_named(_inputs(package, _VARIABLES)), declared)]
    options, image = _inputs(package, _RUNTIME), _identifier(package, program)
    end = len(options)
    if program == "docker":
        passed = [*_passed_by_docker(options, declared)]
        further = {name: variable for _, name, variable in passed}  # docker takes the last one, too
        for entry in env:
            further.pop(entry.name, None)
        env += _given(further.items(), declared, unset=True)
        options = [item for item in options if all(item is not option for option, *_ in passed)]
        end = _place_of_image(options, image)
    runtime = [*_arguments(options[:end], declared)]
    if "run" in first and runtime[:1] == ["run"]:  # of docker, before whose options it stands
        runtime = runtime[1:]
    texts = [*first, *(word for word in runtime if word not in first or word[0] != "-")]
    if program == "docker":
        texts += [word for entry in env for word in ("-e", entry.name)]
    texts += [image, *_arguments([*options[end + 1 :], *_inputs(package, _OF_PACKAGE)], declared)]
    command = _text(package, "runtimeHint", "runtime_hint") or program
    yield TableEntry("command", at, Leaf(at, command, command))
    yield TableEntry("args", at, Items(at, tuple(Leaf(at, text, text) for text in texts)))
    if env:
        yield TableEntry("env", env[0].at, _table(env[0].at, *env))


def _passed_by_docker(
    options: Sequence[Tree], declared: Mapping[str, Tree]
) -> Iterator[tuple[Tree, str, Tree]]:
    """Yield the options `-e NAME={variable}`, each with both: process lists show no environment."""
    for option in options:
        match = _PASSED.fullmatch(_text(option, "value"))
        if match is not None and _text(option, "name") in ("-e", "--env"):
            variable = _variables(option).get(match[2]) or declared.get(match[2])
            if variable is not None:
                yield option, match[1], variable


def _place_of_image(options: Sequence[Tree], image: str) -> int:
    """Return where the image is among docker's options: some write its whole command line there."""
    names = (image, image.rsplit(":", 1)[0])
    words = (item.text if isinstance(item, Leaf) else _positional(item) for item in options)
    return next((place for place, word in enumerate(words) if word in names), len(options))


def _positional(argument: Tree) -> str:
    return "" if _text(argument, "type") == "named" else _text(argument, "value")


def _inputs(package: Tree, keys: Sequence[str]) -> list[Tree]:
    return [item for key in keys for item in _items(find(package, [key]))]


def _identifier(package: Tree, program: str) -> str:
    identifier, version = _text(package, "identifier", "name"), _text(package, "version")
    separator = ":" if program == "docker" else "@"
    has_version = separator in identifier.rsplit("/", 1)[-1] or "@" in identifier[1:]
    return identifier if has_version or not version else f"{identifier}{separator}{version}"


def _declared(way: Tree, *keys: str) -> Mapping[str, Tree]:
    """Return the variables of a package or address and of its inputs.

    Publishers declare one where they use it first, and use it elsewhere, too.
    """
    found: dict[str, Tree] = {}
    for node in (way, *_inputs(way, keys)):
        for name, variable in _variables(node).items():
            found.setdefault(name, variable)
    return found


def _variables(node: Tree) -> Mapping[str, Tree]:
    table = find(node, ["variables"])
    entries = table.entries if isinstance(table, Table) else ()
    return {entry.name: entry.value for entry in reversed(entries)}  # the first of a name counts


def _arguments(arguments: Iterable[Tree], declared: Mapping[str, Tree]) -> Iterator[str]:
    """Yield the words of arguments; one that has no value and needs none is left out."""
    for argument in arguments:
        if isinstance(argument, Leaf):  # written as a word, which the schema does not allow
            yield from () if argument.value is None else (argument.text,)
            continue
        name = _text(argument, "name")
        is_named = _text(argument, "type") == "named"
        hint = _text(argument, "valueHint", "value_hint")
        value = _value(argument, name.lstrip("-") or hint, declared)
        is_flag = is_named and not _text(argument, "valueHint", "value_hint", "format")
        if is_named and _text(argument, "format") == "boolean" and value in ("true", "false"):
            yield from (name,) if value == "true" else ()
        elif value is not None or (is_flag and _is_set(argument, "isRequired", "is_required")):
            yield from (name,) if is_named else ()
            yield from () if value is None else (value,)


def _named(items: Iterable[Tree]) -> Iterator[tuple[str, Tree]]:
    return ((_text(item, "name"), item) for item in items)


def _given(
    inputs: Iterable[tuple[str, Tree]], declared: Mapping[str, Tree], *, unset: bool = False
) -> Iterator[TableEntry]:
    """Yield variables or headers with their values.

    Those that no one has to set are left out, or empty if they are not set, if `unset` is true.
    """
    for name, item in inputs:
        value = _value(item, name, declared)
        if value is None and unset:
            value = f"${{{reference_name(name)}:-}}"
        if not name or value is None:
            continue
        leaf = Leaf(item.at, value, value)
        found = re.fullmatch(r"\$\{(\w+)\}", value)
        secret = TableEntry("secret", item.at, Leaf(item.at, found[1], found[1])) if found else None
        is_secret = secret is not None and _is_set(item, "isSecret", "is_secret")
        yield TableEntry(name, item.at, _table(item.at, secret) if is_secret and secret else leaf)


def _value(item: Tree, name: str, declared: Mapping[str, Tree]) -> str | None:
    """Return an input's value with its references; None if it has none and needs none."""
    own = _variables(item)
    for key in ("value", "default"):
        given = find(item, [key])
        if isinstance(given, Leaf) and given.value is not None:
            return _filled(given.text, declared, own)
    if not _is_set(item, "isRequired", "is_required") or not reference_name(name):
        return None
    return f"${{{reference_name(name)}}}"


def _filled(text: str, declared: Mapping[str, Tree], own: Mapping[str, Tree] = _NOTHING) -> str:
    """Return a text in which each `{NAME}` of its variables is a reference or its default."""

    def one(match: re.Match[str]) -> str:
        variable = own.get(match[1]) or declared.get(match[1])
        if variable is None:
            return match[0]
        return _value(variable, match[1], _NOTHING) or f"${{{reference_name(match[1])}:-}}"

    return _TEMPLATE.sub(one, text)


def _items(node: Tree | None) -> tuple[Tree, ...]:
    return node.items if isinstance(node, Items) else ()


def _text(node: Tree, *keys: str) -> str:
    """Return the text under the first of several spellings of a key, or an empty one."""
    for key in keys:
        value = find(node, [key])
        if isinstance(value, Leaf) and isinstance(value.value, str):
            return value.value
    return ""


def _is_set(node: Tree, *keys: str) -> bool:
    values = (find(node, [key]) for key in keys)
    return any(isinstance(value, Leaf) and value.value is True for value in values)


def _table(at: Position, *entries: TableEntry) -> Table:
    return Table(at, entries)
