"""Variables in other clients' files, in their spellings, and what only a client can fill in."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from leaseway.control_plane.config.formats.client_forms import ClientForm
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.tree.yaml_tree import Items, Leaf, Table, TableEntry, Tree
from leaseway.spec.references import with_ends

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z]+)(?::([^}]*))?\}")
"""Those of most clients: `${env:NAME}`, `${workspaceFolder}`."""
_IN_BRACES: Final = re.compile(r"(?<!\$)\{(env|file):([^{}]+)\}")
"""Those of opencode."""
_IN_TWO_BRACES: Final = re.compile(r"\$\{\{\s*(secrets|inputs)\.([A-Za-z0-9_.-]+)\s*\}\}")
"""Those of Continue."""
_OF_A_USER: Final = re.compile(r"\{\{\s*([A-Z][A-Z0-9_]*)\s*\}\}")
"""Those of LibreChat, which differ from user to user."""
_OF_A_SHELL: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_OF_LITELLM: Final = re.compile(r"os\.environ/([A-Za-z_][A-Za-z0-9_]*)")
_OF_COPILOT: Final = re.compile(r"(?:\$|^)(COPILOT_MCP_[A-Za-z0-9_]+)")
"""Those of Copilot's coding agent, also as whole texts."""
_SEPARATOR: Final = re.compile(r"\$\{(?:/|pathSeparator)\}")
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
        "extensionPath",
        "workspacePath",
        "config",
        "command",
        "cmd",
        "extensionInstallFolder",
    }
)
"""Variables that VS Code, Cursor and Gemini CLI fill in from a window or an extension, and mcphub
by a command."""


def is_of_client(node: Tree) -> bool:
    """Return whether a text holds a variable that only a client can fill in, or an input."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        return False
    names = {match[1] for match in _VARIABLE.finditer(with_ends(node.value))}
    return bool(names & (_OF_CLIENTS | {"input"}))


def with_native_variables(node: Tree, where: Where, form: ClientForm) -> Tree:
    """Return a value with variables as `${NAME}`, and numbers and booleans as text.

    Inputs and variables that only the client can fill in are reported as errors.
    """
    match node:
        case Leaf(value=str() as text):
            return replace(node, value=_Text(node, where, form).native(text))
        case Leaf(value=bool() as flag):
            return replace(node, value=str(flag).lower())
        case Leaf(value=int() | float()):
            return replace(node, value=node.text)
        case Items():
            items = (
                with_native_variables(item, where.item(index, item.at), form)
                for index, item in enumerate(node.items)
            )
            return replace(node, items=tuple(items))
        case Table():
            return replace(node, entries=tuple(_entries_with_variables(node, where, form)))
    return node


def _entries_with_variables(table: Table, where: Where, form: ClientForm) -> list[TableEntry]:
    return [
        replace(entry, value=with_native_variables(entry.value, where.child(entry), form))
        for entry in table.entries
        # A null unsets a variable for VS Code; here an unset variable is omitted.
        if not (isinstance(entry.value, Leaf) and entry.value.value is None)
    ]


_UNFILLED: Final = "${CLIENT}"
"""Stands for a variable that was reported, so that no other mistake is reported for it."""


class _Text:
    """The variables of one text."""

    def __init__(self, node: Leaf, where: Where, form: ClientForm) -> None:
        self._node = node
        self._where = where
        self._form = form

    def native(self, text: str) -> str:
        if self._form.shell_commands and "$(" in text:
            return self._refused("$(…)")
        text = _SEPARATOR.sub("/", text)
        text = _OF_LITELLM.sub(r"${\1}", text) if _OF_LITELLM.fullmatch(text) else text
        text = _OF_COPILOT.sub(r"${\1}", text)
        text = _IN_TWO_BRACES.sub(self._of_continue, text)
        head = with_ends(text)
        text = _VARIABLE.sub(self._of_editors, head) + text[len(head) :]
        text = _IN_BRACES.sub(self._of_opencode, text)
        text = _OF_A_USER.sub(self._of_a_user, text)
        return _OF_A_SHELL.sub(r"${\1}", text) if self._form.shell_variables else text

    def _of_editors(self, match: re.Match[str]) -> str:
        name, argument = match[1], match[2]
        if name == "env" and argument and _NAME.fullmatch(argument):
            return f"${{{argument}}}"
        if name == "userHome" and argument is None:
            return "${HOME}"
        if name == "input":
            return self._asked(argument or "")
        if name == "file" and argument:
            return self._of_file(match[0])
        return self._refused(match[0]) if name in _OF_CLIENTS else match[0]

    def _of_opencode(self, match: re.Match[str]) -> str:
        if match[1] == "file":
            return self._of_file(match[0])
        return f"${{{match[2]}}}" if _NAME.fullmatch(match[2]) else match[0]

    def _of_continue(self, match: re.Match[str]) -> str:
        if match[1] == "inputs" or not _NAME.fullmatch(match[2]):
            return self._asked(match[2])
        return f"${{{match[2]}}}"

    def _of_a_user(self, match: re.Match[str]) -> str:
        return self._refused(match[0])

    def _asked(self, name: str) -> str:
        _report_input(name, self._node, self._where)
        return _UNFILLED

    def _of_file(self, written: str) -> str:
        message = (
            f'{quoted(self._where.key)} uses {quoted(written)}; write {{"file": PATH}} as the whole'
            " value, which is read where workers run. Only 'env' and 'headers' can have it."
        )
        self._where.error(self._node.at, IssueReason.CLIENT_VARIABLE, message)
        return _UNFILLED

    def _refused(self, written: str) -> str:
        message = (
            f"{quoted(self._where.key)} uses {quoted(written)}, which only the client of this file"
            " can fill in; write the value itself."
        )
        self._where.error(self._node.at, IssueReason.CLIENT_VARIABLE, message)
        return _UNFILLED


def _report_input(name: str, node: Leaf, where: Where) -> None:
    message = (
        f"{quoted(where.key)} needs the input {quoted(name)}, which a client asks a person for and"
        " Leaseway asks no one. Set an environment variable where workers run and write"
        " ${NAME} instead."
    )
    where.error(node.at, IssueReason.CLIENT_INPUT, message)
