"""The facts of a call that CEL rules use, read from their checked form.

That form is a `cel.expr.CheckedExpr` (cel-spec, `proto/cel/expr/checked.proto` and `syntax.proto`).
Texts, escapes and macros are resolved in it, so that nothing is guessed from how a rule is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypedDict

from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from leaseway.wire.bounds import MIB


class Facts(TypedDict):
    """The variables of an expression: `args` are the call's arguments, the others are texts.

    `tool` is the name of the prompt, or the URI, if `method` is not `tools/call`.
    """

    method: str
    tool: str
    tenant: str
    agent: str
    session: str
    args: Mapping[str, Any]


VARIABLES: Final = tuple(Facts.__annotations__)

MAX_VALUES: Final = 2_000
"""Values in the arguments that a rule uses: CEL copies each. Calls with more are denied."""

MAX_WORK: Final = 16 * MIB
"""Characters of texts that the loops of rules may read for a call: some 50 ms. Calls whose texts
could cost more are denied: CEL limits the steps of a loop, and not what one of them reads."""
_MAX_STEPS: Final = 10_000
"""Steps of all loops of a rule, by CEL itself."""
_MATCHES: Final = "matches"
_CONTAINS: Final = "contains"
_SEARCH: Final = 1 / 800
"""Of the square of a text's length: how many characters a search of it for another one reads."""

_ARGUMENTS: Final = "args"
_CONTAINERS: Final = (dict, list)


class Needs:
    """The facts of a call that expressions use; maybe more, never less.

    Args:
        names: Variables besides `args`.
        members: Members of `args`; None for all.
        inner: Names that are looked up inside the members, or anywhere in `args` if it needs all.
    """

    __slots__ = ("_folded", "_inner", "_inner_folded", "_members", "_names")

    def __init__(
        self,
        names: frozenset[str],
        members: frozenset[str] | None,
        inner: frozenset[str] = frozenset(),
    ) -> None:
        self._names = names
        self._members = members
        self._inner = inner
        self._folded = frozenset(name.casefold() for name in members or ())
        self._inner_folded = frozenset(name.casefold() for name in inner)

    def __or__(self, other: Needs) -> Needs:
        mine, others = self._members, other._members
        names, inner = self._names | other._names, self._inner | other._inner
        if mine is not None and others is not None:
            members: frozenset[str] | None = mine | others
        else:
            members, inner = None, inner | (mine or others or frozenset())
        return Needs(names, members, inner)

    def are_met_by(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether rules can judge arguments: they are few, and have no similar names.

        Some servers read a member by its name in any case, which a rule does not see.
        """
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


class TextWork(NamedTuple):
    """What an expression reads more than once: each time by a loop, or by a search.

    Attributes:
        loops: How many loops it has inside one another.
        ranges: The members of `args` that loops go through.
        bodies: The members that steps of loops read; of nested loops also those of the ranges.
        searched: The members that are searched for a text of the caller, or hold it.
        repeats_searches: Whether a step of a loop does so.
    """

    loops: int
    ranges: frozenset[str]
    bodies: frozenset[str]
    searched: frozenset[str]
    repeats_searches: bool

    def is_little(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the texts of arguments, which are few, take little time."""
        steps = 1
        if self.loops:
            steps = min(_MAX_STEPS, _count_and_longest(arguments, self.ranges)[0] ** self.loops)
        work: float = steps * _count_and_longest(arguments, self.bodies)[1]
        if self.searched:
            search = _count_and_longest(arguments, self.searched)[1] ** 2 * _SEARCH
            work += steps * search if self.repeats_searches else search
        return work <= MAX_WORK


def _count_and_longest(arguments: Mapping[str, Any], members: frozenset[str]) -> tuple[int, int]:
    """Return how many values members have, and how long their longest text is."""
    used: list[Any] = [arguments]
    if _ARGUMENTS not in members:
        used = [value for name, value in arguments.items() if f".{name}" in members]
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
    return count, longest


class Reading(NamedTuple):
    """What an expression uses, and compares.

    Attributes:
        needs: The facts of a call.
        compared: The texts with which it compares variables, as (variable, text).
        patterns: Its regular expressions.
        takes_patterns: Whether callers choose others, which may take any time.
        work: What of the arguments it reads more than once.
    """

    needs: Needs
    compared: frozenset[tuple[str, str]]
    patterns: frozenset[str]
    takes_patterns: bool
    work: TextWork


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
    return Reading(
        needs=reader.needs,
        compared=frozenset(reader.compared),
        patterns=frozenset(reader.patterns),
        takes_patterns=reader.takes_patterns,
        work=reader.work,
    )


class _Place(NamedTuple):
    """Where an expression stands: in how many loops, in what one goes through, in a search."""

    depth: int = 0
    in_range: bool = False
    in_search: bool = False


class _Reader:
    """Collects what an expression uses."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._members: set[str] = set()
        self._looked_up: set[str] = set()
        self._texts: set[str] = set()
        self._computes_names = False
        self._depth = 0
        self._ranges: set[str] = set()
        self._bodies: set[str] = set()
        self._searched: set[str] = set()
        self._identifiers: set[str] = set()
        self._searches_in_loops = False
        self._place = _Place()
        self._remaining: list[tuple[bytes, _Place]] = []
        self.compared: set[tuple[str, str]] = set()
        self.patterns: set[str] = set()
        self.takes_patterns = False

    @property
    def needs(self) -> Needs:
        inner = self._looked_up | self._texts if self._computes_names else self._looked_up
        names = frozenset(self._names - {_ARGUMENTS})
        if _ARGUMENTS in self._names:  # as a whole
            return Needs(names, None, frozenset(inner | self._members))
        return Needs(names, frozenset(self._members), frozenset(inner))

    @property
    def work(self) -> TextWork:
        # A step of an inner loop may read what an outer one goes through, and a search as well.
        bodies = self._bodies | self._ranges if self._depth > 1 else self._bodies
        searched = self._searched | self._ranges if self._searches_in_loops else self._searched
        return TextWork(
            loops=self._depth,
            ranges=frozenset(self._ranges),
            bodies=frozenset(bodies),
            searched=frozenset(searched),
            repeats_searches=self._searches_in_loops,
        )

    def read(self, expression: bytes) -> None:
        self._push([expression], _Place())
        while self._remaining:
            part, self._place = self._remaining.pop()
            for kind, values in _fields(part).items():
                self._read(kind, _fields(values[0]))

    def _push(self, parts: Iterable[bytes], place: _Place | None = None) -> None:
        place = self._place if place is None else place
        self._remaining += [(part, place) for part in parts]

    def _use(self, argument: str) -> None:
        """Note where a member of the arguments is used, as `.NAME`, or all of them."""
        place = self._place
        if place.depth:
            self._bodies.add(argument)
        if place.in_range:
            self._ranges.add(argument)
        if place.in_search:
            self._searched.add(argument)

    def _read(self, kind: int, content: _Fields) -> None:
        """Read an expression by the number of its only field."""
        match kind:
            case 3:
                self._texts.update(text.decode() for text in content[6])
            case 4:
                name = content[1][0].decode()
                self._identifiers.add(name)
                self._names.update({name}.intersection(VARIABLES))
                if name == _ARGUMENTS:
                    self._use(name)
            case 5:  # a member that is selected
                self._look_up(content[1][0], content[2][0].decode())
            case 6:
                self._call(content)
            case 7:  # a list
                self._push(content[1])
            case 8:
                self._map(content)
            case 9:  # a macro: it may go through the names of a map, and compare them with texts
                self._computes_names = True
                place, steps = self._place, self._place._replace(depth=self._place.depth + 1)
                self._depth = max(self._depth, steps.depth)
                self._push(content[2], place._replace(in_range=True))
                self._push(content[4] + content[7])
                self._push(content[5] + content[6], steps)

    def _call(self, call: _Fields) -> None:
        function, arguments = call[2][0].decode(), call[3]
        if function in _COMPARISONS:
            self._compare(arguments[0], arguments[1:])
            self._compare(arguments[1], arguments[:1])
        elif function == _IN:
            for members in _fields(arguments[1])[7]:
                self._compare(arguments[0], _fields(members)[1])
        elif function == _MATCHES:
            self._pattern(arguments[-1])
        place = self._place
        if function == _CONTAINS and _text_of(arguments[-1]) is None:
            self._searches_in_loops = self._searches_in_loops or bool(place.depth)
            place = place._replace(in_search=True)
        if function in _LOOKUPS:
            self._look_up_key(*arguments)
        elif function == _IN and not _fields(arguments[1])[7]:  # in a list, there is no name
            self._look_up_key(arguments[1], arguments[0])
        else:
            self._push(call[1] + arguments, place)

    def _pattern(self, pattern: bytes) -> None:
        """Note a regular expression, or that callers choose it."""
        constant = _text_of(pattern)
        if constant is not None:
            self.patterns.update(constant)
            return
        reader = _Reader()
        reader.read(pattern)
        if reader._members or reader._identifiers - {"tenant"}:
            self.takes_patterns = True

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
            self._push(entry[3] + entry[4])

    def _look_up_key(self, value: bytes, key: bytes) -> None:
        names = _text_of(key)
        if names is None:
            self._computes_names = self._computes_names or not _fields(key)[3]
            self._push((value, key))
        else:
            self._look_up(value, *names)

    def _look_up(self, value: bytes, name: str) -> None:
        identifier = _fields(value)[4]
        if identifier and _fields(identifier[0])[1] == [_ARGUMENTS.encode()]:
            self._members.add(name)
            self._use(f".{name}")
        else:
            self._looked_up.add(name)
            self._push((value,))


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
