"""Tool filters of other clients' files, converted to native white- and blacklists.

Clients drop a tool that any of their filters drops. A native whitelist overrides the blacklist
beside it, so combined filters are computed here; what has no exact native form is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    Tree,
)
from leaseway.spec.filters.names import matches, spellings

_PLAIN: Final = re.compile(r"[\w./:@ *-]{1,1024}")
"""Names of tools, and the one wildcard that the native format has. Other characters, of which
servers' names may also consist, mean something in the patterns of some client."""

ALLOW: Final = frozenset(
    {
        *("tools", "allowedtools", "allowtools", "allowedtoolnames", "includetools"),
        *("includedtools", "toolsinclude", "enabledtools", "enabletools", "availabletools"),
        *("onlytools", "exposedtools", "exposetools", "selectedtools", "usetools"),
        *("toolwhitelist", "toolswhitelist", "whitelistedtools", "whitelisttools"),
        *("toolallowlist", "toolsallowlist", "toolallow", "toolsallow"),
    }
)
"""Folded keys that name the only tools that may be called."""

DENY: Final = frozenset(
    {
        *("disabledtools", "disabletools", "excludetools", "excludedtools", "toolsexclude"),
        *("blockedtools", "blocktools", "toolblocklist", "toolsblocklist"),
        *("deniedtools", "denytools", "tooldenylist", "toolsdenylist", "tooldeny", "toolsdeny"),
        *("disallowedtools", "disallowtools", "forbiddentools", "hiddentools", "hidetools"),
        *("toolblacklist", "toolsblacklist", "blacklistedtools", "blacklisttools"),
        *("removetools", "removedtools", "ignoredtools", "ignoretools", "suppressedtools"),
    }
)
"""Folded keys that name tools that may not be called."""

FILTERS: Final = frozenset({"toolfilter", "toolsfilter", "toolfilters", "filtertools"})
"""Folded keys of a mapping with such lists."""

_EMPTY_ALLOWS_ALL: Final = frozenset({"availabletools"})
"""Goose's `available_tools: []` is no restriction; for all other clients an empty list allows
nothing."""

_ALLOW_PARTS: Final = frozenset(
    {"include", "included", "allow", "allowed", "enabled", "only", "toolnames", "names"}
)
DENY_PARTS: Final = frozenset(
    {
        *("exclude", "excluded", "deny", "denied", "block", "blocked", "disabled", "disallowed"),
        "rejected",
    }
)
_ALLOW_MODES: Final = frozenset({"allow", "include", "whitelist", "allowlist"})
_DENY_MODES: Final = frozenset({"block", "deny", "exclude", "blacklist", "blocklist", "denylist"})
_ENABLED: Final = frozenset({"enabled", "isenabled", "enable", "active", "isactive"})
_DISABLED: Final = frozenset({"disabled", "isdisabled", "disable", "quarantined"})
_TEXTS: Final = frozenset({"description", "title"})
"""Folded settings of a tool that only describe it."""
_UNASKED: Final = frozenset({"auto", "approve", "never", "none"})
"""Values of approval modes with which no one is asked."""


class NotUnderstood(Exception):
    """A restriction without an exact native form; the text completes "the server is refused: "."""

    def __init__(self, at: Position, text: str) -> None:
        super().__init__(text)
        self.at = at
        self.text = text


def folded(name: str) -> str:
    """Return a key's letters and digits in lower case, since clients spell one key many ways."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def switch_of(name: str) -> bool | None:
    """Return the value of this key that turns a server or tool on; None for other keys."""
    key = folded(name)
    return True if key in _ENABLED else False if key in _DISABLED else None


def asks_no_one(node: Tree) -> bool:
    """Return whether this is the value of an approval mode with which no person is asked."""
    return isinstance(node, Leaf) and (
        node.value is None or node.value is False or folded(str(node.value)) in _UNASKED
    )


def names_in(node: Tree) -> Sequence[Tree]:
    """Return the items of a list of names, or a single name.

    Raises:
        NotUnderstood: It is one text of several words: one name, or several.
    """
    if isinstance(node, Items):
        return node.items
    if isinstance(node, Leaf) and isinstance(node.value, str) and len(node.value.split()) > 1:
        raise NotUnderstood(node.at, f"{quoted(node.value)} may be several names; write a list")
    return (node,)


@dataclass
class ToolRules:
    """All filters of one server's tools: a tool must pass each of them.

    Attributes:
        server: The server's name in the file.
        allowed: Lists of patterns; a tool must match one of each list.
        denied: Patterns of tools that may not be called.
        native: A filter that was written in native keys, which can't be combined with others.
    """

    server: str
    allowed: list[list[Leaf]] = field(default_factory=list)
    denied: list[Leaf] = field(default_factory=list)
    native: TableEntry | None = None

    @classmethod
    def of_native(cls, server: TableEntry) -> ToolRules:
        """Return the rules of a server's native `tools`, to which others can be added."""
        rules = cls(server.name)
        tools = next((member for member in server.members if member.name == "tools"), None)
        for member in tools.members if tools is not None else ():
            items = member.value.items if isinstance(member.value, Items) else ()
            leaves = [item for item in items if isinstance(item, Leaf)]
            if member.name == "whitelist":
                rules.allowed.append(leaves)
            elif member.name == "blacklist":
                rules.denied += leaves
        if rules.allowed and rules.denied:
            raise NotUnderstood(server.at, "'tools' has a whitelist and a blacklist already")
        return rules

    def add(self, entry: TableEntry) -> None:
        """Add the filter under a key of `ALLOW`, `DENY` or `FILTERS`.

        Raises:
            NotUnderstood: It has no exact native form.
        """
        key = folded(entry.name)
        if entry.name == "tools" and _is_native(entry.value):
            self.native = entry
        elif isinstance(entry.value, Table):
            self._add_table(entry)
        elif key in DENY:
            self.denied += self._names(entry.value) or ()
        elif key in ALLOW:
            names = self._names(entry.value)
            if names is not None and (names or key not in _EMPTY_ALLOWS_ALL):
                self.allowed.append(names)
        elif not _is_null(entry.value):
            raise NotUnderstood(entry.at, f"{quoted(entry.name)} is no filter that Leaseway knows")

    def _add_table(self, entry: TableEntry) -> None:
        members = {folded(member.name): member for member in entry.members}
        if members.keys() == {"mode", "list"}:
            mode = members["mode"].value
            word = folded(str(mode.value)) if isinstance(mode, Leaf) else ""
            names = self._names(members["list"].value) or []
            if word in _ALLOW_MODES:
                self.allowed.append(names)
            elif word in _DENY_MODES:
                self.denied += names
            else:
                raise NotUnderstood(mode.at, f"its mode in {quoted(entry.name)} is not known")
            return
        off: list[Leaf] = []
        on: list[Leaf] = []
        for member in entry.members:
            if isinstance(member.value, Leaf) and isinstance(member.value.value, bool):
                is_off = member.value.value is (folded(entry.name) in DENY)
                name = self._checked(Leaf(member.at, member.name, member.name))
                (off if is_off else on).append(name)
            else:
                self._add_member(entry, member)
        self._add_switches(off, on)

    def _add_switches(self, off: list[Leaf], on: list[Leaf]) -> None:
        """Add switches of single tools or patterns; for clients, later ones override earlier."""
        overridden = [pattern for pattern in on if _matches_any(pattern, off)]
        if overridden:
            all_first = off[0].value == "*" and _place(off[0]) < min(map(_place, on))
            if not all_first or any(map(_is_pattern, (*on, *off[1:]))):
                text = f"{quoted(str(overridden[0].value))} is on, and matches one that is off"
                raise NotUnderstood(overridden[0].at, text)
            self.allowed.append(on)
            off = off[1:]
        self.denied += off

    def _add_member(self, entry: TableEntry, member: TableEntry) -> None:
        """Add a part of a filter (a list), or the settings of one tool."""
        part, value = folded(member.name), member.value
        if isinstance(value, Items) and part in _ALLOW_PARTS | ALLOW:
            self.allowed.append(self._names(value) or [])
        elif isinstance(value, Items) and part in DENY_PARTS | DENY:
            self.denied += self._names(value) or ()
        elif isinstance(value, Table):
            self._add_tool(member)
        elif not _is_null(value):
            text = f"{quoted(member.name)} of {quoted(entry.name)} is no filter that Leaseway knows"
            raise NotUnderstood(member.at, text)

    def _add_tool(self, tool: TableEntry) -> None:
        """Add the settings of one tool: it is on or off; anything else is not understood."""
        for member in tool.members:
            on = switch_of(member.name)
            value = member.value.value if isinstance(member.value, Leaf) else member.value
            if on is not None and isinstance(value, bool):
                if value is not on:
                    names = dict.fromkeys((tool.name, tool.name.removeprefix(f"{self.server}-")))
                    self.denied += (self._checked(Leaf(tool.at, name, name)) for name in names)
            elif on is not None or not (
                folded(member.name) in _TEXTS
                or ("approv" in folded(member.name) and asks_no_one(member.value))
            ):
                raise NotUnderstood(
                    member.at,
                    f"{quoted(member.name)} of its tool {quoted(tool.name)} has no meaning here",
                )

    def _names(self, node: Tree) -> list[Leaf] | None:
        """Return the names of a list, or of a single text; None for null."""
        return None if _is_null(node) else [self._checked(item) for item in names_in(node)]

    def _checked(self, item: Tree) -> Leaf:
        if not isinstance(item, Leaf) or not isinstance(item.value, str):
            raise NotUnderstood(item.at, "it lists something that is not the name of a tool")
        name = item.value
        if not _PLAIN.fullmatch(name):
            raise NotUnderstood(
                item.at, f"{quoted(name)} is neither a tool's name nor a pattern with '*'"
            )
        prefix = f"mcp__{self.server}__"
        name = name.removeprefix(prefix) if len(name) > len(prefix) else name
        return Leaf(item.at, name, name)

    def as_entry(self, at: Position) -> TableEntry | None:
        """Return the native `tools`, or None if every tool may be called.

        Raises:
            NotUnderstood: The filters together have no native form.
        """
        allowed = [names for names in self.allowed if not _has_all(names)]
        if self.native is not None:
            if allowed or self.denied:
                raise NotUnderstood(
                    self.native.at, "'tools' and another filter of tools can't be combined"
                )
            return self.native
        if not allowed:
            return tools_entry("blacklist", self.denied, at) if self.denied else None
        exact = next((names for names in allowed if not any(map(_is_pattern, names))), None)
        if exact is None:
            if self.denied or len(allowed) > 1:
                raise NotUnderstood(at, "it combines patterns of allowed tools with another filter")
            return tools_entry("whitelist", allowed[0], at)
        kept = [
            name
            for name in exact
            if all(_matches_any(name, names) for names in allowed)
            and not any(_matches_any(spelling, self.denied) for spelling in _spellings(name))
        ]
        return tools_entry("whitelist", kept, at) if kept else nothing_entry("tools", at)


def tools_entry(
    kind: str, patterns: Iterable[Leaf], at: Position, key: str = "tools"
) -> TableEntry:
    """Return a native filter with one list, each pattern once."""
    unique = {str(leaf.value): leaf for leaf in patterns}
    return TableEntry(
        key, at, Table(at, (TableEntry(kind, at, Items(at, tuple(unique.values()))),))
    )


def nothing_entry(key: str, at: Position) -> TableEntry:
    """Return a native filter that no name passes: an empty whitelist would let every name pass."""
    return tools_entry("blacklist", [Leaf(at, "*", "*")], at, key)


def report_not_understood(error: NotUnderstood, name: str, where: Where) -> None:
    """Reject a server for a restriction of its file, named by its key."""
    message = (
        f"{quoted(name)} restricts the server {quoted(where.server_id or '')} in a way that"
        f" Leaseway can't take over ({error.text}); the server is refused rather than run without"
        " it. Write the restriction in native keys ('tools: {whitelist: [...]}', 'blacklist',"
        " 'permissions', 'rules') and remove this key."
    )
    where.error(error.at, IssueReason.RESTRICTION_NOT_TAKEN_OVER, message)


def _is_native(node: Tree) -> bool:
    names = {entry.name for entry in node.entries} if isinstance(node, Table) else set[str]()
    return bool(names) and names <= {"whitelist", "blacklist"}


def _is_null(node: Tree) -> bool:
    return isinstance(node, Leaf) and node.value is None


def _place(leaf: Leaf) -> tuple[int, int]:
    return leaf.at.line, leaf.at.column


def _is_pattern(leaf: Leaf) -> bool:
    return "*" in str(leaf.value)


def _has_all(names: Sequence[Leaf]) -> bool:
    return any(leaf.value == "*" for leaf in names)


def _spellings(name: Leaf) -> Iterable[Leaf]:
    """Return a name as a blacklist knows it, too: clients may deny by the name for models."""
    return (Leaf(name.at, spelling, spelling) for spelling in spellings(str(name.value)))


def _matches_any(name: Leaf, patterns: Iterable[Leaf]) -> bool:
    return any(matches(str(pattern.value), str(name.value)) for pattern in patterns)
