"""What follows an error's message, and the texts that only operators get."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from leaseway.cli.app import COMMANDS as COMMANDS
from leaseway.wire.advice import LISTED_BY, LOGIN_PAGE, Reader, advice_for, for_operators

ROOT = Path(__file__).parents[2]
ERRORS = {"Fault", "Denial", "unauthenticated"}
"""What makes the errors that callers get."""


@pytest.mark.parametrize(
    ("metadata", "at_a_terminal", "for_a_model"),
    [
        ({}, "", ""),
        ({LISTED_BY: "tools"}, " See `leaseway tools`.", " Use a name that is listed."),
        (
            {LISTED_BY: "resources files"},
            " See `leaseway resources files`.",
            " Use a URI that is listed.",
        ),
        (for_operators("Run `leaseway problems`."), " Run `leaseway problems`.", ""),
        (for_operators(""), "", ""),
        (
            {**for_operators("Run `leaseway login mail`."), LOGIN_PAGE: "https://c/login/w/t"},
            " Run `leaseway login mail`. Or open https://c/login/w/t",
            " Tell the person you work for to log in there, then call again: https://c/login/w/t",
        ),
    ],
)
def test_only_who_has_commands_is_told_them(
    metadata: dict[str, str], at_a_terminal: str, for_a_model: str
) -> None:
    assert advice_for(Reader.TERMINAL, metadata) == at_a_terminal
    assert advice_for(Reader.MODEL, metadata) == for_a_model


def test_no_message_to_callers_names_a_command() -> None:
    commands = "|".join(COMMANDS)
    names_command = re.compile(rf"\bleaseway ({commands})\b").search
    files = [
        path
        for folder in ("control_plane", "data_plane", "front", "sdk")
        for path in (ROOT / folder).rglob("*.py")
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
        and names_command(text := path.read_text())
        and any(f"{name}(" in text for name in ERRORS)
    ]
    assert files
    told = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in files
        for line, text in _messages(ast.parse(path.read_text()))
        if names_command(text)
    ]
    assert told == []


def _messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the texts that errors are made of, without those for operators."""
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if any(_name(node) in ERRORS for node in ast.walk(scope)):
            for statement in scope.body[ast.get_docstring(scope) is not None :]:
                yield from _texts(statement)


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    if _name(node) == "for_operators":
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):  # that is a scope of its own
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def _name(node: ast.AST) -> str:
    """Return the name of what a node calls, or empty."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
