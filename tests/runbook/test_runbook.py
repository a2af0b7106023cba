"""The runbook has an entry for every reason of the code, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from leaseway.runbook import entries, markdown

_ROOT = Path(__file__).parents[2]
_SOURCES = (
    "control_plane/leaseway/control_plane",
    "data_plane/leaseway/data_plane",
    "sdk/leaseway",
)
_NOT_SEARCHED = {"v1", "testing", "cli", "kit", "console"}
_CONSTANT = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
_VARIABLES = re.compile(
    r"NO_(COLOR|PROXY)$|REQUEST_METHOD$|(LEASEWAY|LD|OTEL|GRPC|PYTHON|XDG|KUBERNETES|SSL|TCP|LC|RLIMIT|PR|CAP|O)_"
)
_OTHER_CONSTANTS = {
    "NOT_SERVING",
    "SERVER_STATE_",
    "CLIENT_CERTIFICATE",
    "CLIENT_KEY",
    "CERTIFICATE_VERIFY_FAILED",
    "WRONG_VERSION_NUMBER",
}
"""What looks like a reason and is none; a reason has a page instead."""


def _reasons_of(tree: ast.Module) -> Iterator[str]:
    """Yield every text of a module that looks like a reason, its list of names left out."""
    for node in tree.body:
        names = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(name, ast.Name) and name.id == "__all__" for name in names):
            continue
        for part in ast.walk(node):
            text = part.value if isinstance(part, ast.Constant) else None
            if isinstance(text, str) and _CONSTANT.fullmatch(text) and not _VARIABLES.match(text):
                yield text
            if isinstance(part, ast.ClassDef) and part.name.endswith("Reason"):
                yield from _members(part)


def _members(enumeration: ast.ClassDef) -> Iterator[str]:
    for line in enumeration.body:
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
            yield str(line.value.value)


def _reasons_in_code() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for source in _SOURCES:
        for path in sorted((_ROOT / source).rglob("*.py")):
            if not _NOT_SEARCHED & set(path.relative_to(_ROOT).parts):
                for reason in _reasons_of(ast.parse(path.read_text(encoding="utf-8"))):
                    found.setdefault(reason, path.relative_to(_ROOT))
    return {reason: path for reason, path in found.items() if reason not in _OTHER_CONSTANTS}


def test_every_reason_of_the_code_has_an_entry() -> None:
    missing = {r: str(path) for r, path in _reasons_in_code().items() if r not in entries()}
    assert not missing, f"write sdk/leaseway/runbook/entries.toml for {missing}"


def test_no_entry_is_about_a_reason_that_the_code_does_not_have() -> None:
    used = set(_reasons_in_code()) | _single_words()
    assert set(entries()) - used == set()


def _single_words() -> set[str]:
    """Return the texts in capitals of the code, such as EXITED, which have no underscore."""
    words: set[str] = set()
    for source in _SOURCES:
        for path in (_ROOT / source).rglob("*.py"):
            words |= set(re.findall(r'"([A-Z]+)"', path.read_text(encoding="utf-8")))
    return words


def test_each_entry_says_what_to_look_at_and_what_to_do_in_sentences() -> None:
    for entry in entries().values():
        for part in (entry.cause, entry.look, entry.do):
            assert part[0].isupper() or part[0] in "`b", f"{entry.reason}: {part}"
            assert part.endswith((".", "?")), f"{entry.reason}: {part}"


def test_the_page_is_the_one_that_is_written_from_the_entries() -> None:
    page = (_ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    assert page == markdown(), "run `make runbook`"


def test_each_reason_has_a_heading_that_problems_can_link_to() -> None:
    headings = re.findall(r"^### (\S+)$", markdown(), re.MULTILINE)
    assert headings == list(entries())


def test_every_command_that_an_entry_names_exists() -> None:
    from leaseway.cli.app import COMMANDS

    text = markdown()
    named = set(re.findall(r"`leaseway ([a-z-]+)", text))
    assert named <= set(COMMANDS), f"no such command: {sorted(named - set(COMMANDS))}"
