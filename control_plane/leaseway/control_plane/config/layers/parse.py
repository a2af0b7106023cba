"""Layers: several files as one configuration, for everyone and for each tenant (DESIGN §2).

*System* declares servers; a *domain* may enable, disable and parametrise declared ones for its
tenant; *session* may change anything. Pure: files come in as texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from leaseway.control_plane.config.layers.combine import LayerDocument, combine
from leaseway.control_plane.config.layers.document import DocumentReader, read_root
from leaseway.control_plane.config.schema.issues import IssueLog, ParsedConfig, Where
from leaseway.control_plane.config.tree.yaml_tree import Table

LayerKind = Literal["global", "native", "system", "kubernetes", "domain", "session"]
"""Which layer a file is: `native` is a file alone, `global` what lies under such a one, and
`kubernetes` a resource that declares a server, over what files declare."""

_STRICT: Final = frozenset({"system", "kubernetes", "domain"})


@dataclass(frozen=True)
class Layer:
    """One file of a configuration.

    Attributes:
        kind: Which layer it is.
        path: The file's name, for issues.
        text: Its content.
        tenant: Whose domain it is; empty but for domains.
        bare: Whether its tools get no prefix where its format cannot state one.
    """

    kind: LayerKind
    path: str
    text: str
    tenant: str = ""
    bare: bool = False


ReaderOf = Callable[[Table, Layer], DocumentReader]
"""Tells what reads a file, from its root."""


def parse_layers(layers: Sequence[Layer], decoder_for: ReaderOf) -> ParsedConfig:
    """Parse the files of a configuration, the lowest layer first.

    Args:
        layers: The files.
        decoder_for: Tells what reads a file.
    """
    log = IssueLog(
        layers[0].path if layers else "",
        frozenset(layer.path for layer in layers if layer.kind in _STRICT),
        list(dict.fromkeys(layer.path for layer in layers)),
    )
    documents: list[LayerDocument] = []
    for layer in layers:
        own = IssueLog(layer.path)
        where = Where(own)
        root = read_root(layer.text, where, layer.path)
        document = None if root is None else decoder_for(root, layer)(root, where)
        log.absorb(own, layer.tenant)
        log.failed -= own.failed
        log.broken = log.broken or own.broken or document is None
        if document is not None:
            documents.append(
                LayerDocument(layer.kind, layer.path, layer.tenant, document, own.failed)
            )
    if not log.broken:
        return combine(documents, log)
    if len(documents) == len(layers):
        combine(documents, log)  # for what else is wrong: one look finds all of it
    return ParsedConfig({}, frozenset(), log.issues(), broken=True, places=log.places)
