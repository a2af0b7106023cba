"""One server of another client's file, translated into native keys.

Each key is mapped, harmless (`client_keys`), or, if its name looks like a restriction, refuses the
server; any other key is a warning, because the file belongs to the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from leaseway.control_plane.config.formats.client_forms import ClientForm, find
from leaseway.control_plane.config.formats.client_keys import (
    APPROVAL_MODES,
    CREDENTIAL_KEYS,
    HARMLESS,
    NESTED,
    OPTIONS,
    READ_ONLY,
    RENAMED,
    SECONDS,
    credential_header,
    may_restrict,
    restrictive_members,
)
from leaseway.control_plane.config.formats.client_oauth import (
    LOGIN_PARTS,
    is_login,
    login_of,
    with_parts,
)
from leaseway.control_plane.config.formats.client_values import (
    arguments_of,
    below_home,
    is_empty,
    is_own_front,
    number_of,
    pairs_of,
    says_nothing,
    split,
    stripped,
    words_of,
)
from leaseway.control_plane.config.formats.client_variables import (
    is_of_client,
    with_native_variables,
)
from leaseway.control_plane.config.formats.tool_rules import (
    ALLOW,
    DENY,
    FILTERS,
    NotUnderstood,
    ToolRules,
    asks_no_one,
    folded,
    report_not_understood,
    switch_of,
)
from leaseway.control_plane.config.layers.denials import id_of
from leaseway.control_plane.config.layers.document import (
    Implied,
    is_implied,
    transport_entry,
    whitelist,
)
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.keys import SERVER_KEYS
from leaseway.control_plane.config.schema.tables import unique_entries
from leaseway.control_plane.config.schema.values import wrong_type
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    Tree,
)
from leaseway.spec.kinds.process import ProcessPart
from leaseway.spec.kinds.remote import RemotePart

_KINDS: Final = (ProcessPart, RemotePart)
"""The kinds of servers that clients know. A key of the first one counts most."""
_TRANSPORTS: Final[Mapping[str, str]] = {
    spelling: transport
    for kind in _KINDS
    for spelling, transport in (
        *zip(kind.transports, kind.transports, strict=True),
        *kind.synonyms.items(),
    )
}
"""Transports by their folded spellings."""
_UNSPECIFIC: Final = frozenset({"remote", "url", "auto"})
"""Folded types that say no more than that there is a URL."""
_NETWORK: Final = frozenset(RemotePart.transports)
_OF_PROCESSES: Final = frozenset({"command", "args", "env", "env_file", "cwd", "inherit_env"})
_OF_NETWORKS: Final = frozenset({"url", "headers", "sessionId"})
_WITH_VARIABLES: Final = frozenset({"command", "args", "env", "url", "headers", "cwd"})
_SHAPES: Final = {"env": pairs_of, "headers": pairs_of, "cwd": below_home, "url": stripped}
"""What people write under native keys, as native values."""
_PREFERRED: Final = ("httpUrl", "type")
"""Of several spellings of one native key, these count."""
_MILLISECONDS: Final = 1_000.0
_MISSPELT: Final = 0.8
"""Similarity from which a key without a meaning counts as a misspelt one."""
_LOGS_IN: Final = "oauth2"
"""LiteLLM's `auth_type` of a login; with others, the same keys exchange each caller's token."""
_LIST_FILTERS: Final = frozenset({"prompts", "resources"})


class ClientServer:
    """One server's entry.

    Args:
        entry: The server, with a valid id as its name.
        servers: The place of the mapping of servers.
        implied: When an entry without a transport implies one.
        form: The form of its file.
    """

    def __init__(
        self, entry: TableEntry, servers: Where, implied: Implied, form: ClientForm
    ) -> None:
        self._entry = entry
        self._where = replace(servers.child(entry), server_id=entry.name)
        self._implied = implied
        self._form = form
        self._rules = ToolRules(entry.name)
        self._on: Leaf | None = None
        self._native: dict[str, TableEntry] = {}
        self._referred: dict[str, list[TableEntry]] = {"headers": [], "env": []}
        self._login: TableEntry | None = None
        self._login_parts: list[TableEntry] = []

    def native(self) -> TableEntry | None:
        """Return the entry in native keys; None, with a warning, if nothing is to run for it.

        That is an entry for Leaseway itself, for a part of the client, or for nothing but a switch.
        """
        if not isinstance(self._entry.value, Table):
            return self._entry
        entries = unique_entries(self._entry.value, self._where)
        entries.sort(key=lambda member: member.name not in _PREFERRED)
        if is_own_front(self._entry):
            self._where.warning(self._entry.at, IssueReason.OWN_ENTRY_SKIPPED, _OWN_ENTRY)
            return None
        skipped = self._skipped(entries)
        if skipped:
            message = f"The entry {quoted(self._entry.name)} is skipped: {skipped}."
            self._where.warning(self._entry.at, IssueReason.CLIENT_SERVER_SKIPPED, message)
            return None
        for entry in entries:
            self._translate(entry)
        self._add_tools()
        if self._on is not None:
            self._native["enabled"] = TableEntry("enabled", self._on.at, self._on)
        self._add_referred()
        self._add_transport()
        self._drop_misplaced()
        self._add_login()
        return self._entry.with_members(self._native.values())

    def _skipped(self, entries: Sequence[TableEntry]) -> str:
        """Return why there is nothing to run for an entry; empty if there is, or should be."""
        names = {RENAMED.get(entry.name, entry.name) for entry in entries}
        if not names or {"command", "url"} & names:
            return ""
        source = self._entry.member("source")
        is_extension = isinstance(source, Leaf) and source.value == "extension"
        is_own = folded(str(_type_of(self._entry))) in self._form.own_types
        alone = self._implied == "always"  # else the layers below may have the rest
        if is_own or is_extension or (alone and self._form.has_extensions):
            return "it is a part of its client, and has no command or URL that Leaseway could run"
        if alone and all(switch_of(entry.name) is not None for entry in entries):
            return "it only switches a server that is defined elsewhere, and has no command or URL"
        return ""

    def _translate(self, member: TableEntry, *, of_options: bool = False) -> None:
        where, key = self._where.child(member), folded(member.name)
        name = RENAMED.get(member.name, member.name)
        if says_nothing(name, member.value):
            return
        if name == "protocol" and folded(str(getattr(member.value, "value", ""))) in _TRANSPORTS:
            name = "transport"
        if name in ("command", "url") and is_empty(member.value) and self._has_another():
            return  # as some forms save what was not filled in
        try:
            if self._restrict(member, key):
                pass
            elif key in SECONDS:
                self._add_timeout(member, where, of_options=of_options)
            elif key in NESTED and isinstance(member.value, Table):
                for nested in member.members:
                    self._translate(nested, of_options=key in OPTIONS)
            elif (
                self._refer(member, key, where)
                or self._sign_in(member, key)
                or _is_named(self._entry, member)
            ):
                pass
            elif name in SERVER_KEYS:
                self._add(name, member, where)
            else:
                self._reject_or_warn(member, where)
        except NotUnderstood as error:
            report_not_understood(error, member.name, where)

    def _refer(self, member: TableEntry, key: str, where: Where) -> bool:
        """Take over a key that holds or names variables or credentials; return whether it does."""
        if key in ("bearertokenenvvar", "envhttpheaders"):
            self._refer_to_headers(member, where)
        elif key in ("envvars", "envkeys"):
            self._refer_to_variables(member, where)
        elif key in ("bearertoken", "authorizationtoken"):
            self._add_credential(member, key, where)
        elif key == "auth" and isinstance(member.value, Leaf):  # FastMCP's
            if folded(str(member.value.value)) == "oauth":
                self._login = replace(member, value=Table(member.value.at, ()))
            else:
                self._add_credential(member, "bearertoken", where)
        elif key in CREDENTIAL_KEYS:
            self._add_credential(member, _auth_type_of(self._entry), where)
        else:
            return key == "authtype" and self._has_auth_type(member)
        return True

    def _has_auth_type(self, member: TableEntry) -> bool:
        """Return whether LiteLLM's `auth_type` is taken over, here or with what it is about."""
        kind = _auth_type_of(self._entry)
        if any(folded(other.name) in CREDENTIAL_KEYS for other in self._entry.members):
            return True
        if kind == _LOGS_IN and self._login is None:
            self._login = replace(member, value=Table(member.value.at, ()))
        return kind in ("none", _LOGS_IN)

    def _sign_in(self, member: TableEntry, key: str) -> bool:
        """Keep a key that says how a person logs in; return whether it is one."""
        names = {RENAMED.get(other.name, other.name) for other in self._entry.members}
        if is_login(member):
            self._login = member
        elif key in LOGIN_PARTS and "url" in names and self._may_log_in():
            if not is_empty(member.value):
                self._login_parts.append(member)
        else:
            return False
        return True

    def _may_log_in(self) -> bool:
        """Return whether its `auth_type`, if there is one, is that of a login."""
        return _auth_type_of(self._entry) in ("", _LOGS_IN)

    def _has_another(self) -> bool:
        """Return whether the entry has a command or a URL beside an empty one."""
        return any(
            RENAMED.get(member.name, member.name) in ("command", "url")
            and not is_empty(member.value)
            for member in self._entry.members
        )

    def _restrict(self, member: TableEntry, key: str) -> bool:
        """Take over a key that is known to restrict; return whether it is one."""
        on = switch_of(member.name)
        if on is not None and isinstance(member.value, Leaf):
            self._switch(member.value, on)
        elif key in ALLOW | DENY | FILTERS:
            self._rules.add(member)
        elif key in READ_ONLY:
            self._add_read_only(member)
        elif key in APPROVAL_MODES:
            if not asks_no_one(member.value):
                raise NotUnderstood(member.at, _ASKS)
        else:
            return False
        return True

    def _switch(self, value: Leaf, on: bool) -> None:
        if str(value.value).lower() in ("true", "false"):
            value = replace(value, value=str(value.value).lower() == "true")
        if isinstance(value.value, bool) and not on:
            value = replace(value, value=not value.value)
        # Off counts if one of several switches says so; a bad value is reported when it is read.
        if self._on is None or value.value is not True:
            self._on = value

    def _add_read_only(self, member: TableEntry) -> None:
        value = member.value.value if isinstance(member.value, Leaf) else None
        if value is False:
            return
        if value is not True or self._entry.member("permissions") is not None:
            raise NotUnderstood(member.at, "it is not 'true', or there are 'permissions', too")
        no = Leaf(member.value.at, False, "false")
        table = Table(member.value.at, (TableEntry("write", member.at, no),))
        self._native["permissions"] = TableEntry("permissions", member.at, table)

    def _add_timeout(self, member: TableEntry, where: Where, *, of_options: bool) -> None:
        name, unit = SECONDS[folded(member.name)]
        number = number_of(member.value)
        if number is None:
            self._native.setdefault(name, TableEntry(name, member.at, member.value))
            return
        if number <= 0:
            self._warn(member, where, "0 or less is no time; Leaseway's default counts")
            return
        if unit is None:
            is_long = number >= _MILLISECONDS and (of_options or not self._form.in_seconds)
            unit = _MILLISECONDS if is_long else 1.0
        value = number / unit
        node = Leaf(member.value.at, value, f"{value:g}")
        self._native.setdefault(name, TableEntry(name, member.at, node))

    def _refer_to_headers(self, member: TableEntry, where: Where) -> None:
        """Add Codex's headers, which name variables."""
        headers, value = self._referred["headers"], member.value
        is_bearer = folded(member.name) == "bearertokenenvvar"
        if is_bearer and isinstance(value, Leaf) and isinstance(value.value, str) and value.value:
            text = f"Bearer ${{{value.value}}}"
            headers.append(TableEntry("Authorization", member.at, Leaf(value.at, text, text)))
        elif isinstance(value, Table) and not is_bearer:
            headers += [_reference(header.name, "env", header.value) for header in member.members]
        elif not is_empty(value):
            wanted = "the name of a variable" if is_bearer else "a mapping of headers to variables"
            wrong_type(value, where, wanted).report(value, where)

    def _add_credential(self, member: TableEntry, kind: str, where: Where) -> None:
        """Add a credential that has a key of its own as the header that carries it."""
        value = with_native_variables(member.value, where, self._form)
        given = value.value if isinstance(value, Leaf) else None
        header = credential_header(kind, given) if isinstance(given, str) else None
        if header is None:
            self._reject_or_warn(member, where)
            return
        leaf = Leaf(member.value.at, header[1], header[1])
        self._referred["headers"].append(TableEntry(header[0], member.at, leaf))

    def _refer_to_variables(self, member: TableEntry, where: Where) -> None:
        """Add variables that the file only names: Codex's `env_vars`, Goose's `env_keys`.

        The latter are secrets of Goose's own store, so they are looked up as secrets here.
        """
        kind = "env" if folded(member.name) == "envvars" else "secret"
        for item in member.value.items if isinstance(member.value, Items) else (member.value,):
            name = find(item, ["name"]) if isinstance(item, Table) else item
            source = find(item, ["source"]) if isinstance(item, Table) else None
            is_elsewhere = isinstance(source, Leaf) and source.value != "local"
            if is_elsewhere or not isinstance(name, Leaf) or not isinstance(name.value, str):
                self._warn(member, where, "it names something else than variables of this machine")
                continue
            self._referred["env"].append(_reference(name.value, kind, name))

    def _add_referred(self) -> None:
        for key, referred in self._referred.items():
            given = self._native.get(key)
            own = given.members if given is not None else ()
            names = {entry.name for entry in own}
            added = {entry.name: entry for entry in referred if entry.name not in names}
            if added and (given is None or isinstance(given.value, Table)):  # else it is an error
                at = referred[0].at
                members = (*own, *added.values())
                self._native[key] = TableEntry(key, at, Table(at, members))

    def _add(self, name: str, member: TableEntry, where: Where) -> None:
        if name in ("cwd", "env_file") and is_of_client(member.value):
            self._warn(member, where, _NO_PATH)
            return
        if name in self._native:
            if name not in ("transport", "args"):  # the command has taken its arguments
                self._warn(member, where, f"{quoted(name)} is set already by another spelling")
            return
        value = member.value
        if name == "command":
            value = below_home(self._command(value, where))
        elif name == "args":
            value = self._arguments(value, where)
        elif name in _SHAPES:
            value = _SHAPES[name](value)
        elif name == "transport":
            found = _transport(value)
            if found is None:
                return
            value = found
        elif name in _LIST_FILTERS:
            value = whitelist(member).value
        if name in _WITH_VARIABLES:
            value = with_native_variables(value, where, self._form)
        self._native[name] = TableEntry(name, member.at, value)

    def _command(self, node: Tree, where: Where) -> Tree:
        """Return a command's program; add its arguments, before those beside it."""
        given = arguments_of(self._entry.member("args"))
        if isinstance(node, Items) and node.items and given is not None:
            program, *rest = node.items
            self._add_arguments((*rest, *given), node.at, where)
            return program
        words = words_of(node)
        if words is not None and len(words) > 1 and given is not None:
            message = (
                f"{quoted(where.key)} is a whole command line: its first word is taken as the"
                " program, the others as its arguments. Write them in 'args'."
            )
            where.warning(node.at, IssueReason.BAD_VALUE, message)
            self._add_arguments((*words[1:], *given), node.at, where)
            return words[0]
        if isinstance(node, Table):  # Zed's {path, args, env}
            parts = {entry.name: entry for entry in node.entries}
            for name in ("args", "env"):
                if name in parts and self._entry.member(name) is None:
                    self._translate(parts[name])
            for entry in node.entries:
                if entry.name not in ("path", "args", "env"):
                    self._reject_or_warn(entry, where)
            if "path" in parts:
                return parts["path"].value
        return node

    def _add_arguments(self, words: Sequence[Tree], at: Position, where: Where) -> None:
        if words:
            args = with_native_variables(Items(at, tuple(words)), where, self._form)
            self._native["args"] = TableEntry("args", at, args)

    def _arguments(self, node: Tree, where: Where) -> Tree:
        """Return arguments that are written as one text as a list."""
        words = split(node) if isinstance(node, Leaf) and isinstance(node.value, str) else None
        if words is None:
            return node
        message = (
            f"{quoted(where.key)} is one text: its words are taken as the arguments. Write a list."
        )
        where.warning(node.at, IssueReason.BAD_VALUE, message)
        return Items(node.at, words)

    def _reject_or_warn(self, member: TableEntry, where: Where) -> None:
        key = folded(member.name)
        if key in HARMLESS:
            self._warn(member, where, HARMLESS[key])
            return
        if may_restrict(member):
            raise NotUnderstood(member.at, "its meaning is not known")
        nested = next(restrictive_members(member.value), None)
        if nested is not None:
            raise NotUnderstood(nested.at, f"the meaning of {quoted(nested.name)} is not known")
        self._warn(member, where, f"it has no meaning here{_instead(member.name)}")

    def _warn(self, member: TableEntry, where: Where, why: str) -> None:
        message = (
            f"{quoted(member.name)} of the server {quoted(self._entry.name)} is not taken over:"
            f" {why}{'' if why.endswith('?') else '.'}"
        )
        where.warning(member.at, IssueReason.KEY_NOT_TAKEN_OVER, message)

    def _add_tools(self) -> None:
        try:
            tools = self._rules.as_entry(self._entry.at)
        except NotUnderstood as error:
            report_not_understood(error, "tools", self._where)
            return
        if tools is not None:
            self._native["tools"] = tools

    def _add_transport(self) -> None:
        """Add the transport that an entry implies; it also replaces one that can't be meant."""
        given = self._native.get("transport")
        named = given.value.value if given is not None and isinstance(given.value, Leaf) else None
        has_command, has_url = "command" in self._native, "url" in self._native
        is_wrong = (named in ProcessPart.transports and has_url and not has_command) or (
            named in _NETWORK and has_command and not has_url
        )
        if given is not None and not is_wrong:
            return
        if given is not None or is_implied(self._implied, self._native):
            implied = self._implied_transport()
            if given is not None:
                found = "url" if has_url else "command"
                text = f"with {found!r} alone, only another transport can be meant"
                self._warn(TableEntry("type", given.at, given.value), self._where, text)
            self._native["transport"] = implied

    def _implied_transport(self) -> TableEntry:
        for kind in _KINDS:
            for key in kind.implied_by:
                entry = self._native.get(key)
                if entry is not None and isinstance(entry.value, Leaf):
                    return transport_entry(kind.implied_transport(str(entry.value.value)), entry.at)
        # Then the missing command is reported.
        return transport_entry(ProcessPart.transports[0], self._entry.at)

    def _drop_misplaced(self) -> None:
        """Drop keys that have no meaning for the transport, such as `env` beside `url`.

        A command and a URL together without a type stay, as an error: either may be meant.
        """
        given = self._native.get("transport")
        named = given.value.value if given is not None and isinstance(given.value, Leaf) else None
        is_named = any(
            folded(member.name) in ("type", "transport", "transporttype")
            for member in self._entry.members
        )
        is_process = named in ProcessPart.transports
        foreign = _OF_NETWORKS if is_process else _OF_PROCESSES if named in _NETWORK else ()
        for name in foreign:
            entry = self._native.get(name)
            if entry is None or (name in ("url", "command") and not is_named):
                continue
            del self._native[name]
            if not is_empty(entry.value):
                why = _NOT_FOR_COMMANDS if is_process else _NOT_FOR_URLS
                self._warn(entry, self._where.child(entry), why)

    def _add_login(self) -> None:
        """Have a person log in as the client does, unless the entry has a credential of its own."""
        login = with_parts(self._login, self._login_parts)
        headers = self._native.get("headers")
        if login is None:
            return
        names = {folded(header.name) for header in headers.members} if headers is not None else ()
        why = ""
        if "url" not in self._native:
            why = _NOT_FOR_COMMANDS
        elif "auth" in self._native:
            why = _OWN_LOGIN
        elif "authorization" in names:
            why = _OWN_CREDENTIAL
        if why:
            self._warn(login, self._where.child(login), why)
            return
        where = self._where.child(login)

        def warn(entry: TableEntry, why: str) -> None:
            self._warn(entry, where.child(entry), why)

        auth = login_of(login, where, self._form, warn)
        if auth is not None:
            self._native["auth"] = auth


_NOT_FOR_COMMANDS: Final = "it has no meaning for a command"
_NOT_FOR_URLS: Final = "it has no meaning for a URL"
_OWN_CREDENTIAL: Final = "'headers' have the header Authorization, which is sent instead"
_NO_PATH: Final = "only the client can fill in the variables of its path; write the path itself"
_OWN_LOGIN: Final = "'auth' says how the server is logged in to"
_ASKS: Final = (
    "a person would have to be asked, which Leaseway does for tools with 'risk: financial' alone"
)
_OWN_ENTRY: Final = (
    "This entry starts Leaseway for a client. Leaseway does not start itself: the entry is skipped,"
    " because each such process would start all servers of this file again."
)


def _instead(name: str) -> str:
    """Return a question for the key that an unknown one may be a misspelling of."""
    known = {key.lower(): key for key in (*RENAMED, *_OF_PROCESSES, *_OF_NETWORKS)}
    found = get_close_matches(name.lower(), known, 1, _MISSPELT)
    return f"; did you mean {quoted(known[found[0]])}?" if found else ""


def _reference(name: str, kind: str, value: Tree) -> TableEntry:
    return TableEntry(name, value.at, Table(value.at, (TableEntry(kind, value.at, value),)))


def _is_named(entry: TableEntry, member: TableEntry) -> bool:
    """Return whether a key is only the entry's own name once more."""
    value = member.value
    return (
        folded(member.name) == "name"
        and isinstance(value, Leaf)
        and id_of(str(value.value)) == id_of(entry.name)
    )


def _auth_type_of(entry: TableEntry) -> str:
    node = entry.member("auth_type")
    return folded(str(node.value)) if isinstance(node, Leaf) else ""


def _type_of(entry: TableEntry) -> object:
    node = entry.member("type")
    return node.value if isinstance(node, Leaf) else None


def _transport(node: Tree) -> Tree | None:
    """Return a native transport; None for a type that only says that there is a URL."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        return node
    key = folded(node.value)
    if key in _UNSPECIFIC:
        return None
    native = _TRANSPORTS.get(key, node.value)
    return replace(node, value=native)
