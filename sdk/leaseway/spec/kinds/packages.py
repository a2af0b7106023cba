"""Kinds of servers that other packages bring, by an entry point of the group `leaseway.kinds`.

The entry point names a subclass of `Part`, which both planes import; its name is the value of
`transport:`. Its attribute `worker` names the module that only workers import. A kind that cannot
be used costs its own servers, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any, Final

from leaseway.spec.keys import Key, OwnReader, keys_of
from leaseway.spec.model import Controls, Part, ServerSpec

KIND_GROUP: Final = "leaseway.kinds"
_MAX_SAID: Final = 300
_COMMON: Final = frozenset(field.name for field in fields(ServerSpec))


@dataclass(frozen=True)
class KindsOfPackages:
    """The kinds that packages of this environment bring.

    Attributes:
        parts: The part of each usable kind, by its value of `transport:`.
        faults: Why others cannot be used: a sentence by the value of `transport:`.
    """

    parts: Mapping[str, type[Part]]
    faults: Mapping[str, str]


def load_kinds(built_in: Sequence[type[Part]]) -> KindsOfPackages:
    """Import the kinds that packages of this environment bring."""
    parts: dict[str, type[Part]] = {}
    faults: dict[str, str] = {}
    taken = {name for part in built_in for name in part.transports}
    found = dict.fromkeys(entry_points(group=KIND_GROUP))  # a path listed twice yields it twice
    for entry in sorted(found, key=attrgetter("name", "value")):
        if entry.name in taken:
            continue  # a package cannot replace a kind of Leaseway's own
        if sum(other.name == entry.name for other in found) > 1:
            faults[entry.name] = "more than one package brings it; uninstall all but one."
            continue
        try:
            part = entry.load()
        except Exception as error:  # noqa: BLE001 - a foreign module raises what it likes
            faults[entry.name] = f"{_origin(entry)} could not be imported: {cause_of(error)}."
            continue
        fault = _fault(entry.name, part, (*built_in, *parts.values()))
        if fault is None:
            parts[entry.name] = part
        else:
            faults[entry.name] = f"{_origin(entry)} {fault}."
    return KindsOfPackages(parts, faults)


def cause_of(error: Exception) -> str:
    """Return what foreign code raised, as the end of a sentence without its full stop."""
    return f"{type(error).__name__}: {error}"[:_MAX_SAID].rstrip(".")


def _fault(name: str, part: Any, others: Sequence[type[Part]]) -> str | None:
    """Return why a loaded object is no usable kind, or None."""
    if not (isinstance(part, type) and issubclass(part, Part) and is_dataclass(part)):
        return "is no dataclass that is a subclass of leaseway.spec.model.Part"
    if part.transports != (name,):
        return f"must have transports = ({name!r},), as its entry point is named"
    if not part.worker:
        return "has no 'worker': the module with values_of and open_instance"
    clash = next((field.name for field in fields(part) if field.name in _COMMON), None)
    if clash is not None:
        return f"has a field {clash!r}, which every server has"
    try:
        schemes = part.schemes(name)
    except Exception as error:  # noqa: BLE001 - a kind of a package raises what it likes
        return f"cannot say the schemes of its addresses: schemes() raised {type(error).__name__}"
    if not (isinstance(schemes, tuple) and all(isinstance(scheme, str) for scheme in schemes)):
        return "has schemes() that return no tuple of texts"
    known = {key.name: key for other in others for key in keys_of(other)}
    common = {key.name for settings in (Controls, ServerSpec) for key in keys_of(settings)}
    for key in keys_of(part):
        is_common = key.name in common
        fault = _key_fault(
            key, known.get(key.name), is_common=is_common, is_read=bool(part.readers)
        )
        if fault is not None:
            return f"has a key {key.name!r}, {fault}"
    return None


def _key_fault(key: Key, known: Key | None, *, is_common: bool, is_read: bool) -> str | None:
    if is_common:
        return "which every server has"
    if known is None:
        if is_read or not isinstance(key.shape, OwnReader):
            return None
        return "which no shape describes, but no 'readers': the module with READERS"
    if (known.shape, known.path) != (key.shape, key.path):
        return "which another kind declares differently; choose another name"
    return None


def _origin(entry: EntryPoint) -> str:
    package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"its entry point {entry.value}{package} (group {KIND_GROUP})"
