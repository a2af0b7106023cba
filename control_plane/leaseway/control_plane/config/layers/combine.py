"""The documents of all layers, combined into variants: a common one and those of tenants.

Entries are merged key by key in their native spelling before they are read, so each value keeps
the place that it came from.

One server's entry on top of another's, key by key (DESIGN §2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from leaseway.control_plane.config.layers.document import CONFIG_OF_CLASS, Document
from leaseway.control_plane.config.layers.domain_references import Reference, not_granted
from leaseway.control_plane.config.layers.grants import unknown_grants, with_grants
from leaseway.control_plane.config.schema.entries import NO_DEFAULTS, Defaults, read_entry
from leaseway.control_plane.config.schema.issues import (
    ConfigIssue,
    IssueLog,
    IssueReason,
    ParsedConfig,
    Where,
    quoted,
)
from leaseway.control_plane.config.schema.keys import SERVER_KEYS
from leaseway.control_plane.config.schema.policy import Tenants
from leaseway.control_plane.config.tree.yaml_tree import (
    START,
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
)
from leaseway.spec.model import ServerSpec, VariantKey, hidden_from
from leaseway.spec.name_filters import NameFilter
from leaseway.wire.names import nearest

_BY_NAME: Final = frozenset({"env", "headers", "config"})
"""Keys whose mappings are merged name by name; of all others the upper value is taken whole."""


def merged(below: TableEntry, above: TableEntry) -> TableEntry:
    """Return an entry with what another says put over it.

    What either repeats stays repeated, for the reader to report. A transport of another kind
    takes along the keys below that it has no use for.
    """
    if not isinstance(below.value, Table) or not isinstance(above.value, Table):
        return replace(below, value=above.value)
    above = _for_class(above, _transport(below.value.entries) == "python")
    assert isinstance(above.value, Table)
    entries = _usable(below.value.entries, above.value)
    upper = {entry.name: entry for entry in above.value.entries}
    kept = [_under(entry, upper.pop(entry.name, None)) for entry in entries]
    taken = {entry.name for entry in kept if entry.name in _BY_NAME}
    names = {entry.name for entry in above.value.entries}
    lower = [entry for entry in kept if entry.name not in names or entry.name in taken]
    added = [entry for entry in above.value.entries if entry.name not in taken]
    return replace(below, value=replace(below.value, entries=(*lower, *added)))


def _for_class(above: TableEntry, is_class: bool) -> TableEntry:
    """Return an entry with what is meant for a class as its `config`, or without it."""
    if not isinstance(above.value, Table):
        return above
    entries = [
        replace(each, name="config") if each.name == CONFIG_OF_CLASS else each
        for each in above.value.entries
        if is_class or each.name != CONFIG_OF_CLASS
    ]
    return replace(above, value=replace(above.value, entries=tuple(entries)))


def _under(below: TableEntry, above: TableEntry | None) -> TableEntry:
    if above is None or below.name not in _BY_NAME:
        return below
    if not isinstance(below.value, Table) or not isinstance(above.value, Table):
        return above
    names = {entry.name for entry in above.value.entries}
    kept = (entry for entry in below.value.entries if entry.name not in names)
    return replace(below, value=replace(below.value, entries=(*kept, *above.value.entries)))


def _usable(entries: Iterable[TableEntry], above: Table) -> list[TableEntry]:
    transport = _transport(above.entries)
    if transport is None or transport == _transport(entries := list(entries)):
        return list(entries)
    return [
        entry
        for entry in entries
        if (key := SERVER_KEYS.get(entry.name)) is None or key.is_for(str(transport))
    ]


def _transport(entries: Iterable[TableEntry]) -> object:
    for entry in entries:
        if entry.name == "transport" and isinstance(entry.value, Leaf):
            return entry.value.value
    return None


DOMAIN_KEYS: Final = frozenset(
    {"enabled", "env", "headers", "config", "tools", "prompts", "resources"}
)
"""What a domain may set of any server; the server's `domain_may` opens more of it.

Of `env` and `headers` these are the names that the layer below states. Filters only narrow.
"""

_FILTERS: Final = ("tools", "prompts", "resources")


def opened_by(entry: TableEntry) -> frozenset[str]:
    """Return what a server's entry lets domains set, beyond what they may of any."""
    entries = entry.value.entries if isinstance(entry.value, Table) else ()
    opened = next((each.value for each in entries if each.name == "domain_may"), None)
    items = opened.items if isinstance(opened, Items) else ()
    return frozenset(item.text for item in items if isinstance(item, Leaf))


def _has(entry: TableEntry, name: str) -> bool:
    entries = entry.value.entries if isinstance(entry.value, Table) else ()
    return any(each.name == name for each in entries)


def _names_a_class(entry: TableEntry) -> bool:
    return isinstance(entry.value, Table) and _transport(entry.value.entries) == "python"


def _names_in(entry: TableEntry, key: str) -> frozenset[str]:
    entries = entry.value.entries if isinstance(entry.value, Table) else ()
    table = next((each.value for each in entries if each.name == key), None)
    return frozenset(one.name for one in table.entries) if isinstance(table, Table) else frozenset()


def _without(entry: TableEntry, names: Collection[str]) -> TableEntry:
    if not isinstance(entry.value, Table) or not names:
        return entry
    kept = tuple(each for each in entry.value.entries if each.name not in names)
    return replace(entry, value=replace(entry.value, entries=kept))


@dataclass(frozen=True)
class LayerDocument:
    """One layer's document.

    Attributes:
        kind: Which layer.
        path: The file.
        tenant: Whose domain it is, or empty.
        document: What it says.
        failed: The servers that have an error in this file already.
    """

    kind: str
    path: str
    tenant: str
    document: Document
    failed: Set[str]

    def where(self, log: IssueLog) -> Where:
        return Where(log).at_key(self.document.root, replace(self.document.at, file=self.path))

    def about(
        self, name: str, at: Position, reason: IssueReason, message: str, server: str | None = None
    ) -> ConfigIssue:
        """Return an error in this file."""
        key = name if name.isprintable() else ascii(name)
        return ConfigIssue(
            self.path, at.line, at.column, key, "error", reason, message, server, self.tenant
        )


@dataclass(frozen=True)
class _Declared:
    entry: TableEntry
    by: LayerDocument


def combine(documents: Sequence[LayerDocument], log: IssueLog) -> ParsedConfig:
    """Combine documents, the lowest layer first.

    Args:
        documents: What the files say; none of them is broken.
        log: What was found in them so far; takes the rest.
    """
    combination = _Combination(log, _last_defaults(documents), _last_tenants(documents))
    base: dict[str, _Declared] = {}
    for one in documents:
        if one.kind in ("global", "native", "system", "kubernetes"):
            # A file over a global one replaces its servers one by one, whole; so do resources.
            base.update((entry.name, _Declared(entry, one)) for entry in one.document.servers)
    sessions = [one for one in documents if one.kind == "session"]
    combination.common(base, sessions)
    for one in documents:
        if one.kind == "domain":
            combination.domain(one, base, sessions)
    return combination.result()


@dataclass
class _Combination:
    log: IssueLog
    defaults: Defaults
    tenants: Tenants | None = None
    specs: dict[VariantKey, ServerSpec] = field(default_factory=dict)
    refused: set[VariantKey] = field(default_factory=set)
    origins: dict[VariantKey, Mapping[str, Position]] = field(default_factory=dict)
    servers: Set[str] = frozenset()

    def result(self) -> ParsedConfig:
        log = self.log
        self._check_grants()
        specs = {key: with_grants(spec, self.tenants) for key, spec in self.specs.items()}
        return ParsedConfig(
            dict(sorted(specs.items())),
            frozenset(log.failed),
            log.issues(),
            broken=False,
            places=log.places,
            refused=frozenset(self.refused),
            origins=self.origins,
            followed=frozenset(log.followed),
            declared=frozenset(
                {f"servers.{name}" for name in self.servers}
                | {f"tenants.{name}" for name in self.tenants or {}}
            ),
        )

    def _check_grants(self) -> None:
        known = frozenset(key.server_id for key in self.specs) | self.log.failed
        for place, server_id in unknown_grants(self.tenants or {}, known):
            near = nearest(server_id, known, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            message = f"There is no server {quoted(server_id)} to grant.{hint}"
            at = self.log.places.get(f"{place}.{server_id}") or self.log.places.get(place, START)
            where = Where(self.log).at_key(place, at)
            where.warning(at, IssueReason.UNDECLARED_SERVER, message)

    def common(self, base: Mapping[str, _Declared], sessions: Sequence[LayerDocument]) -> None:
        """Read what everyone gets."""
        servers = dict(base)
        for session in sessions:
            for entry in session.document.servers:
                if entry.name not in servers and not _switches_only(entry):
                    servers[entry.name] = _Declared(entry, session)
                elif entry.name not in servers:
                    self._undeclared(session, entry, servers)
        self.servers = servers.keys()
        for declared in servers.values():
            overlaid, failed = self._overlaid(declared, sessions)
            own = self.log.fresh()
            spec = self._read(overlaid, own, failed, VariantKey(declared.entry.name))
            self.log.absorb(own)
            if spec is not None:
                self.specs[spec.key] = spec

    def domain(
        self,
        domain: LayerDocument,
        base: Mapping[str, _Declared],
        sessions: Sequence[LayerDocument],
    ) -> None:
        """Read what one tenant gets of the servers that its domain names."""
        if domain.document.defaults.given:
            message = "A domain sets no 'defaults'; set 'transform' on its servers, or in system."
            at = domain.document.defaults.at
            reason = IssueReason.KEY_NOT_FOR_LAYER
            self.log.add(domain.about("defaults", at, reason, message))
        if domain.document.tenants is not None:
            message = "A domain grants nothing; write 'tenants' in the system layer."
            reason = IssueReason.KEY_NOT_FOR_LAYER
            self.log.add(domain.about("tenants", domain.document.at, reason, message))
        for entry in domain.document.servers:
            declared = base.get(entry.name)
            if declared is None:
                self._undeclared(domain, entry, base)
            else:
                self._variant(domain, declared, entry, sessions)

    def _variant(
        self,
        domain: LayerDocument,
        declared: _Declared,
        entry: TableEntry,
        sessions: Sequence[LayerDocument],
    ) -> None:
        common, key = VariantKey(entry.name), VariantKey(entry.name, domain.tenant)
        opened = opened_by(declared.entry)
        if _names_a_class(declared.entry) and _has(entry, CONFIG_OF_CLASS):
            entry = _without(entry, {"env"})  # the same parameters once more, for other servers
        narrows = self._narrowing(declared, sessions, opened)
        over = merged(declared.entry, _without(entry, narrows))
        overlaid, failed = self._overlaid(replace(declared, entry=over), sessions)
        own = self.log.fresh()
        for issue in self._foreign(domain, declared.entry, entry, opened):
            own.add(issue)
        spec = self._read(overlaid, own, failed or entry.name in domain.failed, key)
        spec = _narrowed(spec, domain, entry, narrows, own)
        for issue in self._switched_on(domain, entry, spec):
            own.add(issue)
        for reference in not_granted(entry, declared.entry, domain.tenant, self.tenants):
            own.add(_not_granted(domain, entry, reference))
        self.log.absorb(own, domain.tenant)
        if entry.name in own.failed:
            self.refused.add(key)
        elif spec is None:
            if common in self.specs or entry.name in self.log.failed:
                self.specs[key] = hidden_from(key)
        elif replace(spec, key=common) != self.specs.get(common):
            self.specs[key] = spec

    def _foreign(
        self, domain: LayerDocument, declared: TableEntry, entry: TableEntry, opened: Set[str]
    ) -> Iterable[ConfigIssue]:
        for each in entry.value.entries if isinstance(entry.value, Table) else ():
            if each.name not in SERVER_KEYS or each.name in opened:
                continue
            path = f"{domain.document.root}.{entry.name}.{each.name}"
            if each.name not in DOMAIN_KEYS:
                yield _not_opened(domain, entry, each, path, each.name)
            elif each.name in ("env", "headers") and isinstance(each.value, Table):
                stated = _names_in(declared, each.name)
                for one in each.value.entries:
                    word = f"{each.name}.{one.name}"
                    if one.name not in stated and word not in opened:
                        yield _not_opened(domain, entry, one, f"{path}.{one.name}", word)

    def _narrowing(
        self, declared: _Declared, sessions: Sequence[LayerDocument], opened: Set[str]
    ) -> list[str]:
        """Return the filters of a domain that narrow what is below, and take no place of it."""
        entry = declared.entry
        if _transport(entry.value.entries if isinstance(entry.value, Table) else ()) == "builtin":
            return []  # its tools are switched on by name
        over = {
            each.name
            for session in sessions
            for one in session.document.servers
            if one.name == entry.name and isinstance(one.value, Table)
            for each in one.value.entries
        }
        return [name for name in _FILTERS if name not in opened and name not in over]

    def _switched_on(
        self, domain: LayerDocument, entry: TableEntry, spec: ServerSpec | None
    ) -> Iterable[ConfigIssue]:
        """Refuse tools of a builtin server that are on for the tenant alone."""
        common = self.specs.get(VariantKey(entry.name))
        if spec is None or spec.transport != "builtin" or not isinstance(entry.value, Table):
            return
        on = set(common.builtin.tools) if common is not None else set[str]()
        more = [name for name in spec.builtin.tools if name not in on]
        at = next((each.at for each in entry.value.entries if each.name == "tools"), None)
        if more and at is not None:
            message = (
                f"A domain can't switch on {quoted(more[0])} of the server {quoted(entry.name)}:"
                " only the system layer does. Remove it, or name it there."
            )
            name = f"{domain.document.root}.{entry.name}.tools"
            reason = IssueReason.KEY_NOT_FOR_LAYER
            yield replace(domain.about(name, at, reason, message, entry.name), tenant="")

    def _overlaid(
        self, declared: _Declared, sessions: Sequence[LayerDocument]
    ) -> tuple[_Declared, bool]:
        name = declared.entry.name
        failed = name in declared.by.failed
        for session in sessions:
            failed = failed or name in session.failed
            for entry in session.document.servers:
                if entry.name == name and session is not declared.by:
                    declared = replace(declared, entry=merged(declared.entry, entry))
        return declared, failed

    def _read(
        self, declared: _Declared, own: IssueLog, failed: bool, key: VariantKey
    ) -> ServerSpec | None:
        if failed:
            own.failed.add(key.server_id)
        defaults = self.defaults if self.defaults.given else declared.by.document.implied
        spec = read_entry(declared.entry, declared.by.where(own), defaults)
        prefix = f"{declared.by.document.root}.{key.server_id}."
        self.origins[key] = {
            name.removeprefix(prefix): at
            for name, at in own.places.items()
            if name.startswith(prefix)
        }
        return spec if spec is None or spec.key == key else replace(spec, key=key)

    def _undeclared(
        self, layer: LayerDocument, entry: TableEntry, declared: Mapping[str, _Declared]
    ) -> None:
        near = nearest(entry.name, declared, 1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        who = f"domain of tenant '{layer.tenant}'" if layer.tenant else f"{layer.kind} layer"
        message = (
            f"The {who} names the server {quoted(entry.name)}, which no layer below declares;"
            f" there will be none of that name.{hint}"
        )
        name = f"{layer.document.root}.{entry.name}"
        self.log.add(layer.about(name, entry.at, IssueReason.UNDECLARED_SERVER, message))


def _last_tenants(documents: Sequence[LayerDocument]) -> Tenants | None:
    given = [
        one.document.tenants
        for one in documents
        if one.kind != "domain" and one.document.tenants is not None
    ]
    return given[-1] if given else None


def _not_opened(
    domain: LayerDocument, server: TableEntry, each: TableEntry, path: str, word: str
) -> ConfigIssue:
    message = (
        f"A domain can't set {quoted(word)} of the server {quoted(server.name)}: the system layer"
        " says what runs, where, and how. Remove it, or open it there with"
        f" 'domain_may: [{word if word.isprintable() else each.name}]'."
    )
    reason = IssueReason.KEY_NOT_FOR_LAYER
    return replace(domain.about(path, each.at, reason, message, server.name), tenant="")


def _not_granted(domain: LayerDocument, server: TableEntry, reference: Reference) -> ConfigIssue:
    name = quoted(reference.name)
    message = (
        f"The domain of tenant '{domain.tenant}' reads the {_READS[reference.kind]} {name} for the"
        f" server {quoted(server.name)}, which the system layer does not grant to it. Remove it, or"
        f" grant it there with 'tenants: {{ {domain.tenant}: {{ secrets: [...] }} }}'."
    )
    where = f"{domain.document.root}.{server.name}"
    issue = domain.about(where, reference.at, IssueReason.KEY_NOT_FOR_LAYER, message, server.name)
    return replace(issue, tenant="")


_READS: Final = {"env": "variable", "secret": "secret", "file": "file"}


def _narrowed(
    spec: ServerSpec | None,
    domain: LayerDocument,
    entry: TableEntry,
    names: Collection[str],
    own: IssueLog,
) -> ServerSpec | None:
    """Return a spec with the filters of a domain on top of its own."""
    place = replace(
        Where(own).at_key(domain.document.root, replace(domain.document.at, file=domain.path)),
        server_id=entry.name,
    ).child(entry)
    for each in entry.value.entries if isinstance(entry.value, Table) else ():
        if each.name not in names:
            continue
        rules = SERVER_KEYS[each.name].read(each.value, place.child(each))
        if spec is not None and isinstance(rules, NameFilter):
            below: NameFilter = getattr(spec, each.name)
            spec = replace(spec, **{each.name: below.narrowed(rules)})  # type: ignore[arg-type]
    return spec


def _last_defaults(documents: Sequence[LayerDocument]) -> Defaults:
    given = [
        one.document.defaults
        for one in documents
        if one.kind != "domain" and one.document.defaults.given
    ]
    return given[-1] if given else NO_DEFAULTS


def _switches_only(entry: TableEntry) -> bool:
    table = entry.value
    return isinstance(table, Table) and {each.name for each in table.entries} <= {"enabled"}
