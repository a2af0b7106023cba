"""Write the table of a server's keys into docs/configuration.md, between its two markers.

python tools/write_keys.py [PAGE]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from leaseway.control_plane.config.schema.keys import SERVER_KEYS, ServerKey
from leaseway.spec.keys import Duration

PAGE: Final = Path(__file__).parents[1] / "docs/configuration.md"
BEGIN: Final = "<!-- keys: written by `make generate` -->\n"
END: Final = "<!-- end of keys -->\n"
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def table() -> str:
    """Return the table of all keys."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "| key | of | default | a change | meaning |"
    yield "|---|---|---|---|---|"
    for key in SERVER_KEYS.values():
        change = "new clients" if key.restarts else "at once"
        cells = (f"`{key.name}`", _servers(key), _default(key), change, key.declared.about)
        yield f"| {' | '.join(cells)} |"


def _servers(key: ServerKey) -> str:
    if key.transports is None:
        return "all"
    names = [f"`{name}`" for name in sorted(key.transports)]
    return ", ".join([*names, *(["registered"] if key.for_registered else [])])


def _default(key: ServerKey) -> str:
    if key.declared.required:
        instead = key.declared.instead
        return f"required, or `{instead}`" if instead else "required"
    if key.declared.default:
        return key.declared.default
    value: Any = key.declared.value
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case int() | float() if isinstance(key.declared.shape, Duration):
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


def main() -> None:
    """Replace what is between the markers of the page."""
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"write_keys: {page} lacks the line {(END if begin else BEGIN).strip()!r}.")
    page.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
