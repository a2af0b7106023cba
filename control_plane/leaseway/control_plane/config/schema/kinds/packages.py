"""The readers that kinds of other packages bring, in a module that their part names (`readers`).

Only the control plane imports it. A kind whose readers cannot be used costs its own servers, and an
entry that a reader raises at costs itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from leaseway.control_plane.config.schema.issues import Where, quoted
from leaseway.control_plane.config.schema.values import BadValue, Reader, reader
from leaseway.control_plane.config.tree.yaml_tree import Tree
from leaseway.spec.keys import OwnReader, keys_of
from leaseway.spec.kinds.packages import cause_of
from leaseway.spec.model import Part


@dataclass(frozen=True)
class ReadersOfPackages:
    """What the kinds of packages read of keys that no shape describes.

    Attributes:
        readers: By the name of the key.
        faults: Why kinds cannot be used: a sentence by the value of `transport:`.
    """

    readers: Mapping[str, Reader[Any]]
    faults: Mapping[str, str]


def load_readers(parts: Mapping[str, type[Part]], known: Container[str]) -> ReadersOfPackages:
    """Import the readers of packages.

    Args:
        parts: The part of each of their kinds, by its value of `transport:`.
        known: The keys of built-in kinds, which have readers.
    """
    readers: dict[str, Reader[Any]] = {}
    faults: dict[str, str] = {}
    for transport, part in parts.items():
        wanted = [key for key in _unread(part) if key not in known]
        taken = next((key for key in wanted if key in readers), None)
        if taken is not None:
            faults[transport] = f"its key {taken!r} is one of another package; rename it."
            continue
        try:
            found = importlib.import_module(part.readers).READERS if wanted else {}
            own = {key: _guarded(found[key]) for key in wanted}
        except Exception as error:  # noqa: BLE001 - a foreign module raises what it likes
            cause = cause_of(error)
            faults[transport] = f"the READERS of its module {part.readers} raised {cause}."
            continue
        readers |= own
    return ReadersOfPackages(readers, faults)


def _unread(part: type[Part]) -> Iterator[str]:
    return (key.name for key in keys_of(part) if isinstance(key.shape, OwnReader))


def _guarded(own: Reader[Any]) -> Reader[Any]:
    @reader(own.schema)
    def read(node: Tree, where: Where) -> Any:
        try:
            return own.read(node, where)
        except BadValue:
            raise
        except Exception as error:  # noqa: BLE001 - a foreign reader raises what it likes
            raise BadValue(
                f"{quoted(where.key)} could not be read: its kind raised {type(error).__name__}."
            ) from None

    return read
