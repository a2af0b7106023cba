"""The files of a configuration, from the `--config` options (design.md#configuration)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from leaseway.control_plane.config.kubernetes.resources import CustomResource, resource_path
from leaseway.control_plane.config.layers.document import LayerKind
from leaseway.control_plane.config.tree.files import Unreadable, load_file, read_config
from leaseway.control_plane.config.tree.yaml_tree import BadText, Leaf, Table
from leaseway.wire.names import is_valid_name

DEFAULT_CONFIG: Final = Path(".minds/mcp.yaml")

MAX_TENANTS: Final = 1_000
"""Domain files of a configuration. With more of them it is refused: a tenant without its file would
get the common servers."""

_KIND: Final = re.compile(r"(system|domain|session|kubernetes)=(.*)", re.DOTALL)
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_RANK: Final[dict[LayerKind, int]] = {
    "global": 0,
    "native": 1,
    "system": 1,
    "kubernetes": 2,
    "domain": 3,
    "session": 4,
}


class BadSources(ValueError):
    """The `--config` options make no valid configuration; the message is a sentence."""


@dataclass(frozen=True)
class Source:
    """One file of a configuration, or a folder with a domain for each tenant.

    Attributes:
        folder: Whether it is a folder; each file's stem is a tenant.
        optional: Whether it may be missing without a warning.
        resource: The custom resource, if it is not a file; then `path` is only a name.
        bare: Whether its tools get no prefix if its format cannot state one.
    """

    kind: LayerKind
    path: Path
    tenant: str = ""
    folder: bool = False
    optional: bool = False
    resource: CustomResource | None = None
    bare: bool = False

    @property
    def namespace(self) -> str:
        """The namespace of a source of resources; empty for a file and for a single resource."""
        return self.path.name if self.kind == "kubernetes" and self.resource is None else ""


def parse_sources(
    words: Sequence[str], *, home: Path | None = None, bare: bool = False
) -> tuple[Source, ...]:
    """Return the sources that `--config` options name, the lowest layer first.

    If no layer below a domain is named, the file that the domain inherits is added. A
    `.kode.json` is a layer above the one in the user's home.

    Args:
        words: `PATH`, `system=PATH`, `domain=TENANT:PATH`, `domain=FOLDER`, `session=PATH` or
            `kubernetes=NAMESPACE`.
        home: The user's home; by default the process's.
        bare: Whether tools get no prefix if a file's format cannot state one.

    Raises:
        BadSources: They do not fit together, or a word has none of these forms.
    """
    sources = [_source(word) for word in words]
    if not any(_RANK[source.kind] in (1, 2) for source in sources):
        sources.append(_inherited(sources) or Source("native", DEFAULT_CONFIG))
    _check(sources)
    below = [
        Source("global", (home or Path.home()) / source.path.name, optional=True)
        for source in sources
        if source.kind == "native" and source.path.name == ".kode.json"
    ]
    sources += [source for source in below if not _same(source.path, sources)]
    ordered = sorted(sources, key=lambda source: _RANK[source.kind])
    return tuple(replace(source, bare=bare) for source in ordered)


def files_in(folder: Path) -> list[Path]:
    """Return the domain files of a folder, by name; at most one more than `MAX_TENANTS`.

    Raises:
        OSError: The folder cannot be listed.
    """
    found = (
        path
        for path in folder.iterdir()
        if path.suffix in _SUFFIXES and not path.name.startswith(".") and path.is_file()
    )
    return sorted(found)[: MAX_TENANTS + 1]


def _source(option: str) -> Source:
    match = _KIND.fullmatch(option)
    if match is None:
        if not option:
            raise BadSources("--config needs a path.")
        return Source("native", Path(option))
    kind, rest = match[1], match[2]
    if not rest:
        raise BadSources(f"--config {kind}= needs a path.")
    if kind == "domain":
        return _domain(rest)
    if kind == "kubernetes":
        return _namespace(rest)
    return Source("system" if kind == "system" else "session", Path(rest))


def _domain(rest: str) -> Source:
    tenant, colon, path = rest.partition(":")
    if not colon:
        if not Path(rest).is_dir():
            raise BadSources(
                f"--config domain={rest} names no tenant and no folder: write domain=TENANT:PATH,"
                " or the path of a folder with a file for each tenant."
            )
        return Source("domain", Path(rest), folder=True)
    if not path or not is_valid_name(tenant):
        raise BadSources(
            f"--config domain={rest} is not of the form domain=TENANT:PATH, with a tenant of 1 to"
            " 64 characters of a-z, A-Z, 0-9, '_' and '-'."
        )
    return Source("domain", Path(path), tenant)


def _namespace(name: str) -> Source:
    if not _NAMESPACE.fullmatch(name):
        raise BadSources(
            f"--config kubernetes={name} names no namespace: use 1 to 63 characters of a-z, 0-9"
            " and '-'."
        )
    return Source("kubernetes", resource_path(name))


def resource_source(resource: CustomResource) -> Source:
    if resource.kind == "MCPTenant":
        return Source("domain", resource.path, resource.name, resource=resource)
    return Source("kubernetes", resource.path, resource=resource)


def _check(sources: Sequence[Source]) -> None:
    bases = [source for source in sources if _RANK[source.kind] == 1]
    if len(bases) > 1:
        named = " and ".join(str(source.path) for source in bases)
        raise BadSources(
            f"--config names two files that declare servers, {named}; only one may. Mark the"
            " others as domain=TENANT:PATH or session=PATH."
        )
    if sum(source.kind == "kubernetes" for source in sources) > 1:
        raise BadSources(
            "--config names two namespaces; server ids are unique only within one. Keep one."
        )
    if sum(source.kind == "session" for source in sources) > 1:
        raise BadSources("--config names two session layers; keep one.")
    tenants = [source.tenant for source in sources if source.tenant]
    twice = next((tenant for tenant in tenants if tenants.count(tenant) > 1), None)
    if twice is not None:
        raise BadSources(f"--config names two domains of the tenant '{twice}'; keep one.")


def _inherited(sources: Iterable[Source]) -> Source | None:
    """Return the system file that the domains inherit."""
    domains = [source for source in sources if source.kind == "domain"]
    files = [path for domain in domains for path in _paths(domain)]
    found = {path: inherit for path in files if (inherit := _inherit(path)) is not None}
    named = {path.resolve() for path in found.values()}
    if len(named) > 1:
        raise BadSources(
            "The domains inherit different files:"
            f" {', '.join(sorted(map(str, named)))}. Name one with --config system=PATH."
        )
    if found:
        return Source("system", next(iter(found.values())))
    if domains:
        raise BadSources("A domain needs a system layer below it: add --config system=PATH.")
    return None


def _paths(domain: Source) -> list[Path]:
    return files_in(domain.path) if domain.folder else [domain.path]


def _inherit(path: Path) -> Path | None:
    try:
        root = load_file(read_config(path), str(path))
    except (OSError, Unreadable, BadText):
        return None  # reported when the file is read as a layer
    for entry in root.entries if isinstance(root, Table) else ():
        if entry.name == "inherit" and isinstance(entry.value, Leaf) and entry.value.text:
            named = Path(entry.value.text)
            beside = path.parent / named
            return beside if beside.is_file() and not named.is_file() else named
    return None


def _same(path: Path, sources: Iterable[Source]) -> bool:
    return any(source.path.resolve() == path.resolve() for source in sources)


def tenant_file(folder: Source, path: Path) -> Source:
    return replace(folder, path=path, tenant=path.stem, folder=False)
