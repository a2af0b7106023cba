"""How Sphinx makes the documentation site of these pages (`make docs`).

The first page is the README; the changelog and CONTRIBUTING are pages, too. A link from any of them
to a file that is no page becomes its name.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

import leaseway.sdk
from leaseway.wire.version import PACKAGE_VERSION

project = "Leaseway"
version = release = PACKAGE_VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns: list[str] = []
html_theme = "furo"
html_title = f"Leaseway {PACKAGE_VERSION}"
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_mock_imports = ["agents", "crewai", "langchain_core", "pydantic_ai"]
python_use_unqualified_type_names = True

_ROOT: Final = Path(__file__).resolve().parents[1]
_TEXTS: Final = {
    "index": "README.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
}
"""The pages whose text is another file's."""
_PAGES: Final = {
    **{file: f"{page}.md" for page, file in _TEXTS.items()},
    "sdk/leaseway/sdk/errors.py": "api.md",
}
_ERRORS: Final = ", ".join(
    name
    for name, value in vars(leaseway.sdk).items()
    if isinstance(value, type) and issubclass(value, leaseway.sdk.LeasewayError)
)
"""What `ERRORS` stands for in api.md, which has a section of their own."""
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")

_CODE: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)(\w?)")


def _read(_app: Any, page: str, source: list[str]) -> None:
    """Put a page's text in place, and have its links lead to other pages."""
    file = _TEXTS.get(page)
    text = (_ROOT / file).read_text(encoding="utf-8") if file else ""
    folder = "" if file else "docs"

    def link(found: re.Match[str]) -> str:
        shown, target, place = found[2], found[3], found[4] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if found[1]:
            return f"![{shown}](../{path})"
        if path in _PAGES:
            return f"[{shown}]({_PAGES[path]}{place})"
        if path.startswith("docs/") and path.endswith(".md"):
            return f"[{shown}]({path.removeprefix('docs/')}{place})"
        return shown if shown.strip("`") == path else f"{shown} (`{path}`)"

    if page == "api":
        source[0] = source[0].replace("ERRORS", _ERRORS)
    source[0] = _LINK.sub(link, text or source[0]) + (f"\n\n{source[0]}" if text else "")


def _docstring(
    _app: Any, _what: str, _name: str, _about: Any, _options: Any, lines: list[str]
) -> None:
    """Have what stands in backticks shown as code, as in Markdown, and so what is indented."""

    def literal(found: re.Match[str]) -> str:
        code = f"``{' '.join(found[1].split())}``"
        return f"{code}\\ {found[2]}" if found[2] else code

    made: list[str] = []
    before = ""
    for line in _CODE.sub(literal, "\n".join(lines)).split("\n"):
        indented = line.startswith(" " * (_indent(before) + 4))
        if line and indented and made and not made[-1] and not before.endswith(":"):
            made += [f"{' ' * _indent(before)}::", ""]
        made.append(line)
        before = line or before
    lines[:] = made


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def setup(app: Any) -> None:
    """Have every page and every docstring read in this way."""
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring, priority=1)  # before napoleon
