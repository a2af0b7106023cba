"""The readers and checks of all kinds of servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from leaseway.control_plane.config.schema.issues import Where
from leaseway.control_plane.config.schema.kinds import builtin, container, process, python
from leaseway.control_plane.config.schema.kinds.http_api import servers as http_api
from leaseway.control_plane.config.schema.values import Reader
from leaseway.control_plane.config.tree.yaml_tree import TableEntry
from leaseway.spec.kinds.builtin import BuiltinPart
from leaseway.spec.kinds.container import ContainerPart
from leaseway.spec.kinds.http_api import HttpApiPart
from leaseway.spec.model import Transform
from leaseway.spec.name_filters import NameFilter

READERS: Final[Mapping[str, Reader[Any]]] = {
    **process.READERS,
    **container.READERS,
    **python.READERS,
    **builtin.READERS,
    **http_api.READERS,
}

TOOLS: Final[Mapping[str, Reader[NameFilter]]] = dict.fromkeys(
    BuiltinPart.transports, builtin.tools
)
"""The readers of `tools` that stand for the common one, by the value of `transport:`."""

Complete = Callable[[TableEntry, dict[str, Any], Sequence[Transform], Where], None]
"""Checks an entry's values together, and makes settings of the spec of them."""

COMPLETE: Final[Mapping[str, Complete]] = {
    transport: complete
    for part, complete in (
        (ContainerPart, container.complete),
        (BuiltinPart, builtin.complete),
        (HttpApiPart, http_api.complete),
    )
    for transport in part.transports
}
"""By the value of `transport:`."""
