"""Chooses the format of a file, by its keys and then by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

from leaseway.control_plane.config.formats.client_forms import (
    CLAUDE_CODE,
    form_of,
    is_one_server,
    with_container,
)
from leaseway.control_plane.config.formats.clients import read_clients
from leaseway.control_plane.config.formats.native import read_native
from leaseway.control_plane.config.formats.published.bundles import bundle_servers, is_bundle
from leaseway.control_plane.config.formats.published.registry import is_published, published_servers
from leaseway.control_plane.config.formats.three_layer import read_three_layer
from leaseway.control_plane.config.layers.combine import LayerDocument, combine
from leaseway.control_plane.config.layers.document import (
    Document,
    DocumentReader,
    Implied,
    Layer,
    LayerKind,
    read_root,
)
from leaseway.control_plane.config.schema.issues import IssueLog, IssueReason, ParsedConfig, Where
from leaseway.control_plane.config.tree.files import is_json
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Table

_STRICT: Final = frozenset({"system", "kubernetes", "domain"})
"""Layers in which a literal credential is an error."""

_IMPLIED: Final[Mapping[LayerKind, Implied]] = {"domain": "never", "session": "if_it_runs"}


def parse_config(layers: Sequence[Layer]) -> ParsedConfig:
    """Parse the files of a configuration, each in its own format, the lowest layer first.

    A broken file rejects the configuration, a bad entry only its server. Parsing never raises, but
    blocks on large files.
    """
    log = IssueLog(
        layers[0].path if layers else "",
        frozenset(layer.path for layer in layers if layer.kind in _STRICT),
        list(dict.fromkeys(layer.path for layer in layers)),
    )
    documents: list[LayerDocument] = []
    for layer in layers:
        own = IssueLog(layer.path)
        document = _read(layer, own)
        log.absorb(own, layer.tenant)
        log.failed -= own.failed
        log.broken = log.broken or own.broken or document is None
        if document is not None:
            documents.append(
                LayerDocument(
                    kind=layer.kind,
                    path=layer.path,
                    tenant=layer.tenant,
                    document=document,
                    failed=own.failed,
                )
            )
    if not log.broken:
        return combine(documents, log)
    if len(documents) == len(layers):
        combine(documents, log)  # to list the other mistakes, too
    return ParsedConfig({}, frozenset(), log.issues(), broken=True, places=log.places)


def parse_text(text: str, path: str, *, bare: bool = False) -> ParsedConfig:
    """Parse one file of any format.

    Args:
        text: The file's content.
        path: Its name, for the issues and the format; it is not opened.
        bare: Whether tools get no prefix if the format cannot state one.
    """
    return parse_config([Layer("native", path, text, bare=bare)])


def read_document(text: str, path: str, *, bare: bool = False) -> Document | None:
    """Return a file's servers in native keys, or None if it is broken."""
    return _read(Layer("native", path, text, bare=bare), IssueLog(path))


def _read(layer: Layer, log: IssueLog) -> Document | None:
    where = Where(log)
    root = read_root(layer.text, where, layer.path)
    if root is None:
        return None
    client_file = _as_client_file(root, layer.path, where)
    return None if client_file is None else _choose_reader(client_file, layer)(client_file, where)


def _as_client_file(root: Table, path: str, where: Where) -> Table | None:
    """Return what is like a client's file as one; None, after a fatal issue, if it is unusable."""
    if is_json(path) and is_bundle(root):
        return bundle_servers(root, where, Path.cwd() / Path(path).parent)
    if is_json(path) and is_published(root):
        return published_servers(root, where)
    if is_json(path) and is_one_server(root):
        message = (
            "This is one server without its name. Write it below the name:"
            ' {"mcpServers": {"NAME": {...}}}.'
        )
        where.fatal(root.at, IssueReason.MISSING_KEY, message)
        return None
    return with_container(root, PurePath(path).name)


def _choose_reader(root: Table, layer: Layer) -> DocumentReader:
    values = {entry.name: entry.value for entry in root.entries}
    implied = _IMPLIED.get(layer.kind, "always")
    if "paths" in values and ("openapi" in values or "swagger" in values):
        return _refuse_openapi
    form = form_of(root, PurePath(layer.path).name, json_file=is_json(layer.path))
    if form is not None:
        folder = Path.cwd() if form is CLAUDE_CODE else None
        return read_clients(form, implied, bare=layer.bare, folder=folder)
    version = values.get("version")
    quoted = isinstance(version, Leaf) and version.value == "1.0"
    if "schema" in values or "inherit" in values or quoted:
        return read_three_layer(implied)
    return read_native


def _refuse_openapi(root: Table, where: Where) -> None:
    message = (
        "This is an OpenAPI document, not a configuration: name it under 'openapi' of a server with"
        " 'transport: http_api', or write such a server by `leaseway import openapi FILE`."
    )
    where.fatal(root.at, IssueReason.BAD_VALUE, message)
