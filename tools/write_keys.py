"""Write the tables of keys into pages of docs/, between the two markers of each.

python tools/write_keys.py [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from leaseway.control_plane.config.schema.keys import SERVER_KEYS, ServerKey
from leaseway.control_plane.config.schema.policy import TenantConfig
from leaseway.spec.keys import Choice, Duration, Key, keys_of
from leaseway.spec.kinds.http_tools import HttpParameter, HttpTool

DOCS: Final = Path(__file__).parents[1] / "docs"
BEGIN: Final = "<!-- {}: written by `make generate` -->\n"
END: Final = "<!-- end of {} -->\n"
_OWN_PAGE: Final = ("http_tools",)
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def _keys() -> Iterator[str]:
    """Yield the table of a server's keys."""
    yield "| key | of | default | a change | meaning |"
    yield "|---|---|---|---|---|"
    for key in SERVER_KEYS.values():
        change = "new clients" if key.restarts else "at once"
        cells = (f"`{key.name}`", _servers(key), _default(key.declared), change, key.declared.about)
        yield f"| {' | '.join(cells)} |"


def _inner_keys() -> Iterator[str]:
    """Yield the table of the keys inside keys of a server, but for those of HTTP tools."""
    yield "| in | key | default | meaning |"
    yield "|---|---|---|---|"
    tables: list[tuple[tuple[Key, ...], list[str]]] = []  # the same keys, wherever they are
    for key in SERVER_KEYS.values():
        if key.name not in _OWN_PAGE:
            _collect(key.name, key.declared.inside, tables)
    _collect("tenants.NAME", tuple(keys_of(TenantConfig)), tables)
    for keys, places in tables:
        within = ", ".join(f"`{place}`" for place in places)
        for inner in keys:
            yield f"| {within} | `{inner.name}` | {_inner_default(inner)} | {_meaning(inner)} |"


def _collect(
    place: str, keys: tuple[Key, ...], tables: list[tuple[tuple[Key, ...], list[str]]]
) -> None:
    """Add the keys inside a key, and those inside these, to the tables."""
    places = next((places for known, places in tables if known == keys), None)
    if places is not None:
        places.append(place)
    elif keys:
        tables.append((keys, [place]))
    for key in keys:
        _collect(f"{place}.{key.name}", key.inside, tables)


def _keys_of(settings: type) -> Iterator[str]:
    """Yield the table of the keys that a class declares."""
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for key in keys_of(settings):
        yield f"| `{key.name}` | {_default(key)} | {_meaning(key)} |"


def _tool_keys() -> Iterator[str]:
    return _keys_of(HttpTool)


def _parameter_keys() -> Iterator[str]:
    return _keys_of(HttpParameter)


TABLES: Final[Mapping[str, Mapping[str, Callable[[], Iterator[str]]]]] = {
    "configuration.md": {"keys": _keys, "keys inside keys": _inner_keys},
    "rest-tools.md": {"keys of a tool": _tool_keys, "keys of a parameter": _parameter_keys},
}
"""The tables of each page, by the name in their markers."""


def _meaning(key: Key) -> str:
    words = key.shape.words if isinstance(key.shape, Choice) else ()
    listed = f" One of {', '.join(f'`{word}`' for word in words)}." if words else ""
    return f"{key.about}{listed}" + (f" Only of {_listed(key.only)}." if key.only else "")


def _inner_default(key: Key) -> str:
    return f"required by {_listed(key.required_by)}" if key.required_by else _default(key)


def _listed(forms: Iterable[str]) -> str:
    return ", ".join(form if " " in form else f"`{form}`" for form in forms)


def _servers(key: ServerKey) -> str:
    if key.transports is None:
        return "all"
    names = [f"`{name}`" for name in sorted(key.transports)]
    return ", ".join([*names, *(["registered"] if key.for_registered else [])])


def _default(key: Key) -> str:
    if key.required:
        return f"required, or `{key.instead}`" if key.instead else "required"
    if key.default:
        return key.default
    value: Any = key.value
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case int() | float() if isinstance(key.shape, Duration):
            return _span(value)
        case int() | float():
            return str(value)
        case str() if value:
            return f"`{value}`"
        case _:
            return ""


def _span(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0 and (size < 60 or seconds > size):
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def _with_table(page: Path, text: str, name: str, lines: Iterable[str]) -> str:
    """Return a page's text with a table between its markers."""
    begin, end = BEGIN.format(name), END.format(name)
    before, found, rest = text.partition(begin)
    _, ending, after = rest.partition(end)
    if not found or not ending:
        sys.exit(f"write_keys: {page} lacks the line {(end if found else begin).strip()!r}.")
    table = "".join(f"{line}\n" for line in lines)
    return f"{before}{begin}{table}{end}{after}"


def main() -> None:
    """Replace what is between the markers of the pages."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    for name, tables in TABLES.items():
        page = folder / name
        text = page.read_text(encoding="utf-8")
        for title, lines in tables.items():
            text = _with_table(page, text, title, lines())
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
