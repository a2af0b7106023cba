"""Variables in other clients' files: `${env:NAME}`, inputs, and what only an editor can fill in."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.tree.yaml_tree import Items, Leaf, Table, TableEntry, Tree

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z]+)(?::([^}]*))?\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_OF_CLIENTS: Final = frozenset(
    {
        "workspaceFolder",
        "workspaceFolderBasename",
        "workspaceRoot",
        "cwd",
        "file",
        "fileBasename",
        "fileDirname",
        "pathSeparator",
        "config",
        "command",
        "extensionInstallFolder",
    }
)
"""Variables that VS Code and Cursor fill in from the editor's window."""


def is_of_client(node: Tree) -> bool:
    """Return whether a text holds a variable that only a client can fill in, or an input."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        return False
    names = {match[1] for match in _VARIABLE.finditer(node.value)}
    return bool(names & (_OF_CLIENTS | {"input"}))


def with_native_variables(node: Tree, where: Where) -> Tree:
    """Return a value with variables as `${NAME}`, and numbers and booleans as text.

    Inputs and variables that only the client can fill in are reported as errors.
    """
    match node:
        case Leaf(value=str() as text):
            return replace(node, value=_text_with_variables(text, node, where))
        case Leaf(value=bool() as flag):
            return replace(node, value=str(flag).lower())
        case Leaf(value=int() | float()):
            return replace(node, value=node.text)
        case Items():
            items = (
                with_native_variables(item, where.item(index, item.at))
                for index, item in enumerate(node.items)
            )
            return replace(node, items=tuple(items))
        case Table():
            return replace(node, entries=tuple(_entries_with_variables(node, where)))
    return node


def _entries_with_variables(table: Table, where: Where) -> list[TableEntry]:
    return [
        replace(entry, value=with_native_variables(entry.value, where.child(entry)))
        for entry in table.entries
        # A null unsets a variable for VS Code; here an unset variable is omitted.
        if not (isinstance(entry.value, Leaf) and entry.value.value is None)
    ]


def _text_with_variables(text: str, node: Leaf, where: Where) -> str:
    def spelling(match: re.Match[str]) -> str:
        name, argument = match[1], match[2]
        if name == "env" and argument and _NAME.fullmatch(argument):
            return f"${{{argument}}}"
        if name == "userHome" and argument is None:
            return "${HOME}"
        if name == "input":
            _report_input(argument or "", node, where)
            return "${INPUT}"  # so that no other mistake is reported for it
        if name in _OF_CLIENTS:
            message = (
                f"{quoted(where.key)} uses {quoted(match[0])}, which only the client of this file"
                " can fill in; write the value itself."
            )
            where.error(node.at, IssueReason.CLIENT_VARIABLE, message)
        return match[0]

    return _VARIABLE.sub(spelling, text)


def _report_input(name: str, node: Leaf, where: Where) -> None:
    message = (
        f"{quoted(where.key)} needs the input {quoted(name)}, which a client asks a person for and"
        " Leaseway asks no one. Set an environment variable where workers run and write"
        " ${NAME} instead."
    )
    where.error(node.at, IssueReason.CLIENT_INPUT, message)
