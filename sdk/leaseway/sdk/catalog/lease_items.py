"""What the leases of a session list otherwise than what the tenant sees. Pure.

Tools, prompts, resources and templates of resources are alike, except for what identifies them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from leaseway.wire.listing.definitions import ListKind

ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class LeaseItems(Generic[ItemT]):
    """In what one list of one lease differs, as its instance lists it now.

    Attributes:
        server_id: The leased server.
        digest: Identifies the difference, and those of lists that are read with this one.
        items: What it adds, or defines otherwise.
        absent: The server's own names or URIs of what it does not list.
    """

    server_id: str
    digest: str
    items: tuple[ItemT, ...]
    absent: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.items or self.absent)


class _Identity(NamedTuple):
    """What identifies the items of a list: in the list, and at their server."""

    key: Callable[[Any], Any]
    own: Callable[[Any], str]


_NAMED: Final = _Identity(attrgetter("name"), attrgetter("original_name"))
_IDENTITIES: Final[Mapping[ListKind, _Identity]] = {
    "tools": _NAMED,
    "prompts": _NAMED,
    "resources": _Identity(attrgetter("server_id", "uri"), attrgetter("uri")),
    "templates": _Identity(attrgetter("server_id", "uri_template"), attrgetter("uri_template")),
}


def with_lease_items(
    kind: ListKind, items: Iterable[ItemT], own: Collection[LeaseItems[ItemT]]
) -> list[ItemT]:
    """Return what a session sees: the list of all, with that in which its leases differ.

    A name of all keeps its meaning; of two leases, the server with the smaller id gets a name.

    Args:
        kind: Which list it is.
        items: The list of all.
        own: In what leases differ.
    """
    key_of, own_name_of = _IDENTITIES[kind]
    hidden = {
        (lease.server_id, name)
        for lease in own
        for name in (*lease.absent, *map(own_name_of, lease.items))
    }
    listed: dict[Any, ItemT] = {
        key_of(item): item
        for item in items
        if (getattr(item, "server_id", ""), own_name_of(item)) not in hidden
    }
    for lease in sorted(own, key=attrgetter("server_id")):
        for item in lease.items:
            listed.setdefault(key_of(item), item)
    return [item for _, item in sorted(listed.items(), key=_key)]


def _key(entry: tuple[Any, object]) -> Any:
    return entry[0]
