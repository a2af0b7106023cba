"""The readers and checks of all built-in kinds of servers, of the modules that their parts name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from leaseway.control_plane.config.schema.issues import Where
from leaseway.control_plane.config.schema.values import Reader
from leaseway.control_plane.config.tree.yaml_tree import TableEntry
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.kinds.table import BUILT_IN
from leaseway.spec.model import Transform

Complete = Callable[[TableEntry, dict[str, Any], Sequence[Transform], Where], None]
"""Checks an entry's values together, and makes settings of the spec of them."""

_MODULES: Final[Sequence[tuple[tuple[str, ...], ModuleType]]] = tuple(
    (part.transports, import_module(part.readers)) for part in BUILT_IN if part.readers
)


def _of_transports(name: str) -> dict[str, Any]:
    """Return what modules have by a name, by the values of `transport:` of their kinds."""
    return {
        transport: getattr(module, name)
        for transports, module in _MODULES
        if hasattr(module, name)
        for transport in transports
    }


READERS: Final[Mapping[str, Reader[Any]]] = {
    key: own for _, module in _MODULES for key, own in module.READERS.items()
}

TOOLS: Final[Mapping[str, Reader[NameFilter]]] = _of_transports("tools")
"""The readers of `tools` that stand for the common one, by the value of `transport:`."""

COMPLETE: Final[Mapping[str, Complete]] = _of_transports("complete")
"""By the value of `transport:`."""
