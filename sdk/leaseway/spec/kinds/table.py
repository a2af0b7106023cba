"""The kinds of servers, and the spec of an entry with the settings of its kind. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, Final

from leaseway.spec.kinds.builtin import BuiltinPart
from leaseway.spec.kinds.container import ContainerPart
from leaseway.spec.kinds.http_api import HttpApiPart
from leaseway.spec.kinds.packages import load_kinds
from leaseway.spec.kinds.process import ProcessPart
from leaseway.spec.kinds.python import PythonPart
from leaseway.spec.kinds.registered import RegisteredPart
from leaseway.spec.kinds.remote import RemotePart
from leaseway.spec.model import InstancePolicy, Part, ServerSpec, VariantKey

BUILT_IN: Final[tuple[type[Part], ...]] = (
    ContainerPart,
    ProcessPart,
    RemotePart,
    HttpApiPart,
    PythonPart,
    BuiltinPart,
)
"""The built-in kinds. Of two with the same transport, the first one that is meant is taken."""

TRANSPORTS: Final = tuple(dict.fromkeys(name for part in BUILT_IN for name in part.transports))
"""The built-in values of `transport:`; packages bring others, see `transports`."""

OF_PACKAGES: Final = load_kinds(BUILT_IN)
"""The kinds that packages bring, as of the start of this process."""

PARTS: Final[tuple[type[Part], ...]] = (*BUILT_IN, *OF_PACKAGES.parts.values())
"""All kinds but that of registered transports."""


def part_type(transport: str, settings: Collection[str]) -> type[Part]:
    """Return the part of an entry's kind.

    Args:
        transport: The value of `transport:`.
        settings: The names of the fields that the entry sets.
    """
    for part in PARTS:
        if transport in part.transports and part.is_meant(settings):
            return part
    return RegisteredPart


def split(kind: type[Part], settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an entry's settings that its kind has, and the others."""
    names = {field.name for field in fields(kind)}
    own = {name: value for name, value in settings.items() if name in names}
    return own, {name: value for name, value in settings.items() if name not in names}


def server_spec(key: VariantKey, transport: str, **settings: Any) -> ServerSpec:
    """Return a spec of its fields, those of its part among them.

    Raises:
        TypeError: Neither every server nor one of this kind has such a field.
    """
    kind = part_type(transport, settings)
    own, common = split(kind, settings)
    return ServerSpec(key=key, transport=transport, part=kind(**own), **common)


def hidden_spec(key: VariantKey) -> ServerSpec:
    """Return the variant that hides a common server from one tenant.

    It overrides the common variant and has no tools. It is shared and lazy, so that nothing is ever
    started for it.
    """
    return ServerSpec(
        key=key,
        transport=ProcessPart.transports[0],
        part=ProcessPart(),
        truely_stateless=True,
        hidden=True,
        instances=InstancePolicy(start="lazy"),
        description="Disabled for this tenant.",
    )
