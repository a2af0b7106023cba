"""The worker's half of kinds of servers that name it, such as those that other packages bring.

It is a module that the kind's part names (`Part.worker`), imported once. Its `values_of` gets the
part and a `Resolver`, and returns `ResolvedValues`. Its `open_instance` gets a `ServerSpec`, a
`Host` and an `Opening`, and returns an `InstancePort`, of its own or by `opening.open_mcp`.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

from leaseway.spec.kinds.packages import cause_of
from leaseway.spec.kinds.table import PARTS
from leaseway.spec.model import Part


class UnusableKind(Exception):
    """The worker's half of a kind cannot be used; the text says why, after "its kind"."""


def load_halves() -> None:
    """Import the worker's halves of all kinds that name one; blocks while they are imported."""
    for part in PARTS:
        if part.worker:
            _load(part.worker)


def half_of(part: type[Part]) -> ModuleType:
    """Return the worker's half of a kind.

    Raises:
        UnusableKind: It cannot be imported, or lacks a function.
    """
    loaded = _load(part.worker)
    if isinstance(loaded, str):
        raise UnusableKind(loaded)
    return loaded


@cache
def _load(name: str) -> ModuleType | str:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a foreign module raises what it likes
        return f"cannot be used on this worker: its module {name} raised {cause_of(error)}"
    lacks = [wanted for wanted in ("values_of", "open_instance") if not hasattr(module, wanted)]
    if lacks:
        return f"cannot be used on this worker: its module {name} lacks {lacks[0]}"
    return module
