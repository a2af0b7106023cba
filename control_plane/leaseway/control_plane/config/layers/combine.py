"""Combines the files of all layers into variants: a common one and those of tenants.

The *system* layer declares servers. A *domain* may enable, disable and parametrise them for its
tenant. A *session* layer may change anything.

Entries are merged key by key in their native spelling before they are read, so each value keeps
the position that it came from.

See design.md#configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from leaseway.control_plane.config.layers.denials import asked_message, denied_of, id_of
from leaseway.control_plane.config.layers.document import (
    CONFIG_OF_CLASS,
    Document,
)
from leaseway.control_plane.config.layers.grants import (
    Reference,
    confined_files,
    references_not_granted,
    unknown_grants,
    with_grants,
)
from leaseway.control_plane.config.schema.entries import NO_DEFAULTS, Defaults, read_entry
from leaseway.control_plane.config.schema.issues import (
    ConfigIssue,
    IssueLog,
    IssueReason,
    Narrowings,
    ParsedConfig,
    Where,
    quoted,
)
from leaseway.control_plane.config.schema.keys import FILTERS, SERVER_KEYS, is_by_name
from leaseway.control_plane.config.schema.policy import Tenants
from leaseway.control_plane.config.tree.yaml_tree import (
    START,
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    plain_value,
)
from leaseway.spec.filters.names import NameFilter, matches
from leaseway.spec.kinds.table import hidden_spec, part_type
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.text.suggestions import alike

_MAX_HINTS: Final = 20
"""Limit of unknown names that are compared with the known ones, of which there may be thousands."""
_REFERENCE_NOUNS: Final = {"env": "variable", "secret": "secret", "file": "file"}


def merged(below: TableEntry, above: TableEntry) -> TableEntry:
    """Return an entry overlaid with the same server's entry of an upper layer.

    Repeated keys of either stay repeated, for the reader to report. If the upper layer changes the
    transport, keys below that the new transport does not accept are dropped.
    """
    if not isinstance(below.value, Table) or not isinstance(above.value, Table):
        return replace(below, value=above.value)
    above = _for_class(above, is_class=_accepts(below, "config"))
    upper = {entry.name: entry for entry in above.members}
    kept = [_merged_value(entry, upper.pop(entry.name, None)) for entry in _usable(below, above)]
    by_name = {entry.name for entry in kept if is_by_name(entry.name)}
    names = {entry.name for entry in above.members}
    lower = [entry for entry in kept if entry.name not in names or entry.name in by_name]
    added = [entry for entry in above.members if entry.name not in by_name]
    return below.with_members((*lower, *added))


def _for_class(above: TableEntry, *, is_class: bool) -> TableEntry:
    """Return an entry with its parameters for a class as `config`, or without them."""
    return above.with_members(
        replace(member, name="config") if member.name == CONFIG_OF_CLASS else member
        for member in above.members
        if is_class or member.name != CONFIG_OF_CLASS
    )


def _merged_value(below: TableEntry, above: TableEntry | None) -> TableEntry:
    if above is None or not is_by_name(below.name):
        return below
    if not isinstance(below.value, Table) or not isinstance(above.value, Table):
        return above
    names = {entry.name for entry in above.members}
    kept = (entry for entry in below.members if entry.name not in names)
    return below.with_members((*kept, *above.members))


def _usable(below: TableEntry, above: TableEntry) -> Iterator[TableEntry]:
    """Yield the keys of the lower entry that the upper entry's transport accepts."""
    transport = _transport(above)
    is_changed = transport is not None and transport != _transport(below)
    for entry in below.members:
        key = SERVER_KEYS.get(entry.name)
        if not is_changed or key is None or key.is_for(str(transport)):
            yield entry


def _accepts(server: TableEntry, key: str) -> bool:
    """Return whether a server's transport accepts a key."""
    return SERVER_KEYS[key].is_for(str(_transport(server)))


def _transport(server: TableEntry) -> object:
    return next(
        (
            member.value.value
            for member in server.members
            if member.name == "transport" and isinstance(member.value, Leaf)
        ),
        None,
    )


def opened_keys(entry: TableEntry) -> frozenset[str]:
    """Return the keys that a server's `domain_may` opens to domains."""
    opened = entry.member("domain_may")
    items = opened.items if isinstance(opened, Items) else ()
    return frozenset(item.text for item in items if isinstance(item, Leaf))


def _without(entry: TableEntry, names: Collection[str]) -> TableEntry:
    if not isinstance(entry.value, Table) or not names:
        return entry
    return entry.with_members(member for member in entry.members if member.name not in names)


@dataclass(frozen=True)
class LayerDocument:
    """One layer's document, with the servers that already have an error in its file."""

    kind: str
    path: str
    tenant: str
    document: Document
    failed: Set[str]

    @property
    def denies(self) -> bool:
        """Whether it denies servers, or tools of servers, that other files declare."""
        return bool(self.document.denied) or self.document.only is not None

    def where(self, log: IssueLog) -> Where:
        return Where(log).at_key(self.document.root, replace(self.document.at, file=self.path))

    def error(
        self,
        key: str,
        at: Position,
        message: str,
        *,
        reason: IssueReason = IssueReason.KEY_NOT_FOR_LAYER,
        server: str | None = None,
    ) -> ConfigIssue:
        """Return an error in this file; an error in a server is every tenant's."""
        key = key if key.isprintable() else ascii(key)
        tenant = "" if server is not None else self.tenant
        return ConfigIssue(
            file=self.path,
            line=at.line,
            column=at.column,
            key=key,
            severity="error",
            reason=reason,
            message=message,
            server_id=server,
            tenant=tenant,
        )


@dataclass(frozen=True)
class _Declared:
    entry: TableEntry
    by: LayerDocument


def combine(documents: Sequence[LayerDocument], log: IssueLog) -> ParsedConfig:
    """Combine documents, none of them broken, the lowest layer first; add issues to the log."""
    common = [document.document for document in documents if document.kind != "domain"]
    defaults = [layer.defaults for layer in common if layer.defaults.given]
    tenants = [layer.tenants for layer in common if layer.tenants is not None]
    combination = _Combination(
        log,
        defaults[-1] if defaults else NO_DEFAULTS,
        tenants[-1] if tenants else None,
        denying=[
            document for document in documents if document.kind != "domain" and document.denies
        ],
    )
    base: dict[str, _Declared] = {}
    for layer in documents:
        if layer.kind in ("global", "native", "system", "kubernetes"):
            # A file over a global one replaces whole servers; so do resources.
            base.update((entry.name, _Declared(entry, layer)) for entry in layer.document.servers)
    sessions = [document for document in documents if document.kind == "session"]
    combination.add_common(base, sessions)
    for layer in documents:
        if layer.kind == "domain":
            combination.add_domain(layer, base, sessions)
    return combination.result()


@dataclass
class _Combination:
    log: IssueLog
    defaults: Defaults
    tenants: Tenants | None = None
    denying: Sequence[LayerDocument] = ()
    specs: dict[VariantKey, ServerSpec] = field(default_factory=dict)
    refused: set[VariantKey] = field(default_factory=set)
    origins: dict[VariantKey, Mapping[str, Position]] = field(default_factory=dict)
    narrowings: dict[VariantKey, Narrowings] = field(default_factory=dict)
    servers: Set[str] = frozenset()
    hints: dict[tuple[str, frozenset[str]], str] = field(default_factory=dict)

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
            narrowings=self.narrowings,
            followed=log.followed,
            declared=frozenset(
                {f"servers.{name}" for name in self.servers}
                | {f"tenants.{name}" for name in self.tenants or {}}
            ),
        )

    def _check_grants(self) -> None:
        known = frozenset(key.server_id for key in self.specs) | self.log.failed
        for path, server_id in unknown_grants(self.tenants or {}, known):
            hint = self._did_you_mean(server_id, known)
            if "*" in server_id:
                hint = " Grants have no patterns; leave out 'servers' to grant every server."
            message = f"There is no server {quoted(server_id)} to grant.{hint}"
            at = self.log.places.get(f"{path}.{server_id}") or self.log.places.get(path, START)
            where = Where(self.log).at_key(path, at)
            where.warning(at, IssueReason.UNDECLARED_SERVER, message)

    def add_common(self, base: Mapping[str, _Declared], sessions: Sequence[LayerDocument]) -> None:
        """Read the common variants."""
        servers = dict(base)
        for session in sessions:
            for entry in session.document.servers:
                if entry.name in servers:
                    continue
                if isinstance(entry.value, Table) and _names(entry) <= {"enabled"}:
                    self._report_undeclared(session, entry, servers)
                else:
                    servers[entry.name] = _Declared(entry, session)
        self.servers = servers.keys()
        for declared in servers.values():
            log = self.log.fresh()
            spec = self._read(declared, sessions, log, VariantKey(declared.entry.name))
            self.log.absorb(log)
            if spec is not None:
                self.specs[spec.key] = spec

    def add_domain(
        self,
        domain: LayerDocument,
        base: Mapping[str, _Declared],
        sessions: Sequence[LayerDocument],
    ) -> None:
        """Read one tenant's variants of the servers in its domain."""
        if domain.document.defaults.given:
            message = (
                "A domain can't set 'defaults'; set 'transform' on its servers, or 'defaults' in"
                " the system layer."
            )
            self.log.add(domain.error("defaults", domain.document.defaults.at, message))
        if domain.document.tenants is not None:
            message = "A domain can't grant anything; write 'tenants' in the system layer."
            self.log.add(domain.error("tenants", domain.document.at, message))
        for entry in domain.document.servers:
            declared = base.get(entry.name)
            if declared is None:
                self._report_undeclared(domain, entry, base)
            else:
                self._add_variant(domain, declared, entry, sessions)
        if domain.denies:  # also for servers that the file does not name
            named = {entry.name for entry in domain.document.servers}
            for name, declared in base.items():
                if name not in named:
                    nothing = TableEntry(name, START, Table(START, ()))
                    self._add_variant(domain, declared, nothing, sessions)

    def _add_variant(
        self,
        domain: LayerDocument,
        declared: _Declared,
        entry: TableEntry,
        sessions: Sequence[LayerDocument],
    ) -> None:
        common, key = VariantKey(entry.name), VariantKey(entry.name, domain.tenant)
        opened = opened_keys(declared.entry)
        is_class = _accepts(declared.entry, "config")
        if is_class and entry.member(CONFIG_OF_CLASS) is not None:
            entry = _without(entry, {"env"})  # the same parameters, for servers of other kinds
        log = self.log.fresh()
        if part_type(str(_transport(declared.entry)), ()).enables_tools and common in self.specs:
            below = self.specs[common].part.enabled_tools
            entry = _with_remaining_tools(entry, below, domain.where(log))
        narrowing = _narrowing_filters(declared, sessions, opened)
        over = merged(declared.entry, _without(entry, narrowing))
        for issue in _closed_keys(domain, declared.entry, entry, opened):
            log.add(issue)
        if entry.name in domain.failed:
            log.failed.add(entry.name)
        spec = self._read(replace(declared, entry=over), sessions, log, key)
        narrowings = self.narrowings[key]
        spec = _narrowed(spec, domain, entry, narrowing, log, narrowings)
        spec = _without_denied(spec, domain, log, narrowings) if domain.denies else spec
        for issue in self._newly_enabled_tools(domain, entry, spec):
            log.add(issue)
        confined = confined_files(entry, declared.entry, domain.tenant, self.tenants)
        if spec is not None and confined:
            spec = replace(spec, confined_files=confined)
        for reference in references_not_granted(entry, declared.entry, domain.tenant, self.tenants):
            log.add(_not_granted(domain, entry, reference))
        self.log.absorb(log, domain.tenant)
        if entry.name in log.failed:
            self.refused.add(key)
        elif spec is None:
            if common in self.specs or entry.name in self.log.failed:
                self.specs[key] = hidden_spec(key)
        elif replace(spec, key=common) != self.specs.get(common):
            self.specs[key] = spec

    def _newly_enabled_tools(
        self, domain: LayerDocument, entry: TableEntry, spec: ServerSpec | None
    ) -> Iterator[ConfigIssue]:
        """Yield an error if a domain enables tools that are off below."""
        common = self.specs.get(VariantKey(entry.name))
        if spec is None:
            return
        on = common.part.enabled_tools if common is not None else ()
        more = [name for name in spec.part.enabled_tools if name not in on]
        at = next((member.at for member in entry.members if member.name == "tools"), None)
        if more and at is not None:
            message = (
                f"A domain can't enable {quoted(more[0])} of the server {quoted(entry.name)}: only"
                " the system layer can. Remove it, or enable it there."
            )
            key = f"{domain.document.root}.{entry.name}.tools"
            yield domain.error(key, at, message, server=entry.name)

    def _read(
        self,
        declared: _Declared,
        sessions: Sequence[LayerDocument],
        log: IssueLog,
        key: VariantKey,
    ) -> ServerSpec | None:
        """Read a server's entry, overlaid with those of session layers."""
        name, entry = declared.entry.name, declared.entry
        for session in sessions:
            for server in session.document.servers:
                if server.name == name and session is not declared.by:
                    entry = merged(entry, server)
        if any(name in layer.failed for layer in (declared.by, *sessions)):
            log.failed.add(name)
        defaults = self.defaults if self.defaults.given else declared.by.document.implied
        spec = read_entry(entry, declared.by.where(log), defaults)
        prefix = f"{declared.by.document.root}.{name}."
        self.origins[key] = {
            path.removeprefix(prefix): at
            for path, at in log.places.items()
            if path.startswith(prefix)
        }
        narrowings = self.narrowings[key] = {}
        for layer in self.denying:
            if layer is not declared.by:  # there it is part of the entry already
                spec = _without_denied(spec, layer, log, narrowings)
        return spec if spec is None or spec.key == key else replace(spec, key=key)

    def _report_undeclared(
        self, layer: LayerDocument, entry: TableEntry, declared: Mapping[str, _Declared]
    ) -> None:
        noun = f"domain of tenant '{layer.tenant}'" if layer.tenant else f"{layer.kind} layer"
        message = (
            f"The {noun} names the server {quoted(entry.name)}, which no layer below declares;"
            f" it is ignored.{self._did_you_mean(entry.name, declared)}"
        )
        key = f"{layer.document.root}.{entry.name}"
        reason = IssueReason.UNDECLARED_SERVER
        self.log.add(layer.error(key, entry.at, message, reason=reason))

    def _did_you_mean(self, name: str, known: Collection[str]) -> str:
        """Return which known name is meant; nothing if many others were compared already.

        The files of all tenants may name one server that is gone.
        """
        if len(self.hints) >= _MAX_HINTS:
            return ""
        compared = name, frozenset(known)
        if compared not in self.hints:
            near = alike(*compared)[:1]
            self.hints[compared] = f" Did you mean '{near[0]}'?" if near else ""
        return self.hints[compared]


def _names(entry: TableEntry) -> set[str]:
    return {member.name for member in entry.members}


def _narrowing_filters(
    declared: _Declared, sessions: Sequence[LayerDocument], opened: Set[str]
) -> list[str]:
    """Return the filters that a domain can only narrow, not replace."""
    if part_type(str(_transport(declared.entry)), ()).enables_tools:
        return []  # its `tools` name the enabled tools
    in_sessions = {
        name
        for session in sessions
        for entry in session.document.servers
        if entry.name == declared.entry.name
        for name in _names(entry)
    }
    return [name for name in FILTERS if name not in opened and name not in in_sessions]


def _with_remaining_tools(entry: TableEntry, below: Sequence[str], layer: Where) -> TableEntry:
    """Return a domain's entry of a server whose `tools` enable tools, with those that it leaves on.

    A blacklist alone names what it turns off, of the tools that are on below. A name that turns off
    none may be misspelt.
    """
    blacklist = next(
        (
            member.value.entries[0].value
            for member in entry.members
            if member.name == "tools"
            and isinstance(member.value, Table)
            and [one.name for one in member.value.entries] == ["blacklist"]
        ),
        None,
    )
    if not isinstance(blacklist, Items):
        return entry
    off = NameFilter(blacklist=tuple(str(plain_value(item)) for item in blacklist.items))
    place = layer.child(entry).at_key("tools", blacklist.at)
    for item, pattern in zip(blacklist.items, off.blacklist, strict=True):
        if not any(matches(pattern, name) for name in below):
            message = (
                f"{quoted(pattern)} turns off no tool of the server {quoted(entry.name)}, of which"
                f" the layers below turn on {', '.join(below)}."
            )
            place.warning(item.at, IssueReason.BAD_PATTERN, message)
    on = Items(
        blacklist.at, tuple(Leaf(blacklist.at, name, name) for name in below if off.passes(name))
    )
    if not on.items:
        return entry
    return entry.with_members(
        replace(member, value=on) if member.name == "tools" else member for member in entry.members
    )


def _closed_keys(
    domain: LayerDocument, declared: TableEntry, entry: TableEntry, opened: Set[str]
) -> Iterator[ConfigIssue]:
    """Yield an error for each key or name that a domain sets and may not."""
    for member in entry.members:
        if member.name not in SERVER_KEYS or member.name in opened:
            continue
        path = f"{domain.document.root}.{entry.name}.{member.name}"
        may = SERVER_KEYS[member.name].declared.domain
        if may in ("if_opened", "never_set"):
            yield _not_opened(domain, entry, member, path, member.name)
        elif may == "set_known_names":
            below = declared.member(member.name)
            stated = {entry.name for entry in below.entries} if isinstance(below, Table) else set()
            for name in member.members:
                key = f"{member.name}.{name.name}"
                if name.name not in stated and key not in opened:
                    yield _not_opened(domain, entry, name, f"{path}.{name.name}", key)


def _not_opened(
    domain: LayerDocument, server: TableEntry, member: TableEntry, path: str, key: str
) -> ConfigIssue:
    message = (
        f"A domain can't set {quoted(key)} of the server {quoted(server.name)}: the system layer"
        " decides what runs, where, and how. Remove it, or open it there with"
        f" 'domain_may: [{quoted(key)[1:-1]}]'."
    )
    return domain.error(path, member.at, message, server=server.name)


def _not_granted(domain: LayerDocument, server: TableEntry, reference: Reference) -> ConfigIssue:
    message = (
        f"The domain of tenant '{domain.tenant}' reads the {_REFERENCE_NOUNS[reference.kind]}"
        f" {quoted(reference.name)} for the server {quoted(server.name)}, which the system layer"
        " does not grant to it. Remove it, or grant it there with"
        f" 'tenants: {{ {domain.tenant}: {{ secrets: [...] }} }}'."
    )
    key = f"{domain.document.root}.{server.name}"
    return domain.error(key, reference.at, message, server=server.name)


def _narrowed(
    spec: ServerSpec | None,
    domain: LayerDocument,
    entry: TableEntry,
    names: Collection[str],
    log: IssueLog,
    narrowings: Narrowings,
) -> ServerSpec | None:
    """Return a spec with a domain's filters on top of its own."""
    place = replace(domain.where(log), server_id=entry.name).child(entry)
    for member in entry.members:
        if member.name not in names:
            continue
        rules = SERVER_KEYS[member.name].read(member.value, place.child(member))
        if spec is not None and isinstance(rules, NameFilter):
            spec = _with_filter(spec, member.name, rules, member.at, narrowings)
    return spec


def _with_filter(
    spec: ServerSpec, name: str, rules: NameFilter, at: Position, narrowings: Narrowings
) -> ServerSpec:
    below: NameFilter = getattr(spec, name)
    narrowed = below.narrowed(rules)
    if narrowed == below:
        return spec
    narrowings[name] = (*narrowings.get(name, ()), at)
    return replace(spec, **{name: narrowed})  # type: ignore[arg-type]


def _without_denied(
    spec: ServerSpec | None, layer: LayerDocument, log: IssueLog, narrowings: Narrowings
) -> ServerSpec | None:
    """Return a spec without what a layer's file denies by full names; None if that is all of it."""
    if spec is None:
        return None
    server_id = spec.key.server_id
    only = layer.document.only
    whole, patterns, asked = denied_of(layer.document.denied, server_id)
    if whole or (only is not None and server_id not in {*only, *map(id_of, only)}):
        return None
    if asked is not None:
        reason = IssueReason.RESTRICTION_NOT_TAKEN_OVER
        message = asked_message(asked)
        log.add(layer.error("permissions", asked.at, message, reason=reason, server=server_id))
        return None
    denied = NameFilter(blacklist=tuple(str(pattern.value) for pattern in patterns))
    at = patterns[0].at if patterns else layer.document.at
    return _with_filter(spec, "tools", denied, at, narrowings)
