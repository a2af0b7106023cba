"""The facts of a call that CEL rules use, read from their checked form.

That form is a `cel.expr.CheckedExpr` (cel-spec, `proto/cel/expr/checked.proto` and `syntax.proto`).
Texts, escapes and macros are resolved in it, so that nothing is guessed from how a rule is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from leaseway.wire.bounds import MIB

VARIABLES: Final = ("method", "tool", "tenant", "agent", "session", "args")
"""The variables of an expression: `args` are the call's arguments, the others are texts. `tool` is
the name of the prompt, or the URI, if `method` is not `tools/call`."""

MAX_VALUES: Final = 2_000
"""Values in the arguments that a rule uses: CEL copies each. Calls with more are denied."""

MAX_WORK: Final = 16 * MIB
"""Characters of texts that the loops of rules may read for a call: some 50 ms. Calls whose texts
could cost more are denied: CEL limits the steps of a loop, and not what one of them reads."""
_MAX_STEPS: Final = 10_000
"""Steps of all loops of a rule, by CEL itself."""
_MATCHES: Final = "matches"
_SEARCHES: Final = {"contains": 800, _MATCHES: 4}
"""Functions that search a text for another one: the square of their length, divided by this, is how
many characters one of them reads at worst."""

_ARGUMENTS: Final = "args"
_CONTAINERS: Final = (dict, list)


class Needs:
    """The facts of a call that expressions use; maybe more, never less.

    Args:
        names: Variables besides `args`.
        members: Members of `args`; None for all.
        inner: Names that are looked up inside the members, or anywhere in `args` if it needs all.
        loops: How many loops an expression has.
        searches: The functions that search texts of a caller for others of his.
    """

    __slots__ = (
        "_folded",
        "_inner",
        "_inner_folded",
        "_loops",
        "_members",
        "_names",
        "_searches",
    )

    def __init__(
        self,
        names: frozenset[str],
        members: frozenset[str] | None,
        inner: frozenset[str] = frozenset(),
        *,
        loops: int = 0,
        searches: frozenset[str] = frozenset(),
    ) -> None:
        self._names = names
        self._members = members
        self._inner = inner
        self._loops = loops
        self._searches = searches
        self._folded = frozenset(name.casefold() for name in members or ())
        self._inner_folded = frozenset(name.casefold() for name in inner)

    def __or__(self, other: Needs) -> Needs:
        mine, others = self._members, other._members
        names, inner = self._names | other._names, self._inner | other._inner
        if mine is not None and others is not None:
            members: frozenset[str] | None = mine | others
        else:
            members, inner = None, inner | (mine or others or frozenset())
        loops = max(self._loops, other._loops)
        return Needs(names, members, inner, loops=loops, searches=self._searches | other._searches)

    def are_met_by(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether rules can judge arguments.

        They are few, have no similar names, and no texts that take too long. Some servers read a
        member by its name in any case, which a rule does not see.
        """
        if not self._are_clear(arguments):
            return False
        return not (self._loops or self._searches) or self._cost_little(arguments)

    def _cost_little(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether loops and searches read few characters of the arguments that are used."""
        members = self._members
        used: list[Any] = [arguments]
        if members is not None:
            used = [value for name, value in arguments.items() if name in members]
        count = longest = 0
        while used:
            value = used.pop()
            count += 1
            if isinstance(value, str):
                longest = max(longest, len(value))
            elif isinstance(value, dict):
                longest = max(longest, *map(len, value), 0)
                used.extend(value.values())
            elif isinstance(value, list):
                used.extend(value)
        steps: int = min(_MAX_STEPS, count**self._loops)
        work = longest + sum(longest * longest / _SEARCHES[name] for name in self._searches)
        return steps * work <= MAX_WORK

    def _are_clear(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether arguments are few, and have no name like one that is looked up."""
        members = self._members
        if members is None:
            return self._is_clear(arguments)
        nested: list[Any] = []
        for name, value in arguments.items():
            if name in members:
                if isinstance(value, _CONTAINERS):
                    nested.append(value)
            elif name.casefold() in self._folded:
                return False
        return not nested or self._is_clear(nested)  # rules name far fewer than `MAX_VALUES`

    def _is_clear(self, value: Any) -> bool:
        """Return whether a value is small, and has no name like one that is looked up in it."""
        count, remaining = 0, [value]
        while remaining:
            value = remaining.pop()
            count += 1
            if isinstance(value, _CONTAINERS):  # as JSON is parsed
                if len(value) > MAX_VALUES:
                    return False
                if isinstance(value, dict):
                    if self._inner and self._hides_one(value):
                        return False
                    remaining.extend(value.values())
                else:
                    remaining.extend(value)
            if count + len(remaining) > MAX_VALUES:
                return False
        return True

    def _hides_one(self, value: Mapping[str, Any]) -> bool:
        inner, folded = self._inner, self._inner_folded
        return any(name not in inner and name.casefold() in folded for name in value)

    def select(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the needed part of the facts of a call."""
        chosen: dict[str, Any] = {}
        for name in self._names:  # no comprehension: it is a function call, and each call does this
            chosen[name] = facts[name]
        args = facts["args"]
        if self._members is None:
            chosen["args"] = args
        elif self._members:
            chosen["args"] = members = {}
            for name in self._members:
                if name in args:
                    members[name] = args[name]
        return chosen


NOTHING: Final = Needs(frozenset(), frozenset())


class Reading(NamedTuple):
    """What an expression uses, and compares.

    Attributes:
        needs: The facts of a call.
        compared: The texts with which it compares variables, as (variable, text).
        patterns: Its regular expressions.
    """

    needs: Needs
    compared: frozenset[tuple[str, str]]
    patterns: frozenset[str]


_Fields = Mapping[int, list[bytes]]
_CHECKED: Final = b"type.googleapis.com/cel.expr.CheckedExpr"
_LOOKUPS: Final = frozenset({"_[_]", "_[?_]", "_?._"})
"""Functions of a value and a key."""
_IN: Final = "@in"
"""The function of a key and a value."""
_COMPARISONS: Final = frozenset({"_==_", "_!=_"})


def read_expression(serialized: bytes) -> Reading:
    """Return what an expression uses.

    Args:
        serialized: Its checked form, as `google.protobuf.Any`.

    Raises:
        ValueError: That is another form.
    """
    wrapper = _fields(serialized)
    if wrapper[1] != [_CHECKED]:
        raise ValueError(f"its compiled form is {wrapper[1]!r}")
    reader = _Reader()
    reader.read(_fields(wrapper[2][0])[4][0])
    return Reading(reader.needs, frozenset(reader.compared), frozenset(reader.patterns))


class _Reader:
    """Collects what an expression uses."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._members: set[str] = set()
        self._looked_up: set[str] = set()
        self._texts: set[str] = set()
        self._loops = 0
        self._searches: set[str] = set()
        self._computes_names = False
        self._remaining: list[bytes] = []
        self.compared: set[tuple[str, str]] = set()
        self.patterns: set[str] = set()

    @property
    def needs(self) -> Needs:
        inner = self._looked_up | self._texts if self._computes_names else self._looked_up
        names = frozenset(self._names - {_ARGUMENTS})
        members: frozenset[str] | None = frozenset(self._members)
        if _ARGUMENTS in self._names:  # as a whole
            members, inner = None, inner | self._members
        searches = frozenset(self._searches)
        return Needs(names, members, frozenset(inner), loops=self._loops, searches=searches)

    def read(self, expression: bytes) -> None:
        self._remaining.append(expression)
        while self._remaining:
            for kind, values in _fields(self._remaining.pop()).items():
                self._read(kind, _fields(values[0]))

    def _read(self, kind: int, content: _Fields) -> None:
        """Read an expression by the number of its only field."""
        match kind:
            case 3:
                self._texts.update(text.decode() for text in content[6])
            case 4:
                self._names.update({content[1][0].decode()}.intersection(VARIABLES))
            case 5:  # a member that is selected
                self._look_up(content[1][0], content[2][0].decode())
            case 6:
                self._call(content)
            case 7:  # a list
                self._remaining += content[1]
            case 8:
                self._map(content)
            case 9:  # a macro: it may go through the names of a map, and compare them with texts
                self._computes_names = True
                self._loops += 1
                for part in (2, 4, 5, 6, 7):
                    self._remaining += content[part]

    def _call(self, call: _Fields) -> None:
        function, arguments = call[2][0].decode(), call[3]
        if function in _COMPARISONS:
            self._compare(arguments[0], arguments[1:])
            self._compare(arguments[1], arguments[:1])
        elif function == _IN:
            for members in _fields(arguments[1])[7]:
                self._compare(arguments[0], _fields(members)[1])
        if function in _SEARCHES:
            sought = _text_of(arguments[-1])
            if sought is None:
                self._searches.add(function)
            elif function == _MATCHES:
                self.patterns.update(sought)
        if function in _LOOKUPS:
            self._look_up_key(*arguments)
        elif function == _IN and not _fields(arguments[1])[7]:  # in a list, there is no name
            self._look_up_key(arguments[1], arguments[0])
        else:
            self._remaining += call[1] + arguments

    def _compare(self, value: bytes, others: list[bytes]) -> None:
        """Note the texts among the values with which a variable is compared."""
        identifier = _fields(value)[4]
        if identifier:
            name = _fields(identifier[0])[1][0].decode()
            texts = (text for other in others for text in _text_of(other) or ())
            self.compared.update((name, text) for text in texts)

    def _map(self, entries: _Fields) -> None:
        for entry in map(_fields, entries[2]):
            for key in entry[3]:
                self._looked_up.update(_text_of(key) or ())
            self._remaining += entry[3] + entry[4]

    def _look_up_key(self, value: bytes, key: bytes) -> None:
        names = _text_of(key)
        if names is None:
            self._computes_names = self._computes_names or not _fields(key)[3]
            self._remaining += (value, key)
        else:
            self._look_up(value, *names)

    def _look_up(self, value: bytes, name: str) -> None:
        identifier = _fields(value)[4]
        if identifier and _fields(identifier[0])[1] == [_ARGUMENTS.encode()]:
            self._members.add(name)
        else:
            self._looked_up.add(name)
            self._remaining.append(value)


def _text_of(expression: bytes) -> tuple[str] | None:
    """Return the text that an expression is, or None if it is anything else."""
    constant = _fields(expression)[3]
    text = _fields(constant[0])[6] if constant else []
    return (text[0].decode(),) if text else None


def _fields(message: bytes) -> _Fields:
    """Return the texts and messages of a message by the numbers of their fields."""
    found: dict[int, list[bytes]] = defaultdict(list)
    unknown = UnknownFieldSet(Empty.FromString(message))
    for field in (unknown[place] for place in range(len(unknown))):
        if isinstance(field.data, bytes):
            found[field.field_number].append(field.data)
    return found
