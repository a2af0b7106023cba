"""CEL rules on arguments: compiled by the control plane as a check, and by workers.

The `cel-expr-python` package (Google's C++ implementation, the extra `rules`) evaluates them; it is
imported with the first rule. It copies its input value by value, which takes longer than the rule
itself, so it gets only the variables and members that the rules of a tool use, once for all rules.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

VARIABLES: Final = ("method", "tool", "tenant", "agent", "session", "args")
"""The variables of an expression: `args` are the call's arguments, the others are texts. `tool` is
the name of the prompt, or the URI, if `method` is not `tools/call`."""

MAX_VALUES: Final = 2_000
"""Values in the arguments that a rule uses: CEL copies each. Calls with more are denied."""

_NAMED: Final = re.compile(rf"\b(?:{'|'.join(VARIABLES[:-1])})\b")
_CONTAINERS: Final = (dict, list)
_ARGUMENTS: Final = re.compile(r"\bargs\b(?:\s*\.\s*([A-Za-z_]\w*)(?!\w|\s*\())?")
"""Each use of `args`, with the member that it selects if it does nothing else."""
_TEXT: Final = (
    r"""(?:[rR][bB]?|[bB][rR])(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"]*"|'[^']*')"""
    r"""|[bB]?(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
)
"""A text of CEL, raw or not."""
_SELECTED: Final = re.compile(
    rf"""
      \.\s*\??\s*([A-Za-z_]\w*)(?!\w|\s*\()
    | \.\s*\??\s*`([^`]*)`
    | \[\s*\??\s*({_TEXT})\s*\]
    | ({_TEXT})\s*in\b
    | ({_TEXT})
    | ([\w\])]\s*\[\s*\??\s*[A-Za-z_(\[] | \b(?!in\b)\w+\s+in\b | \)\s*in\b)
    """,
    re.VERBOSE | re.DOTALL,
)
"""What an expression looks up in a value: `x.name`, ``x.`name` ``, `x["name"]`, `"name" in x`; then
any other text; then a name that is computed: `x[name]`, `name in x`."""


class Expression(Protocol):
    """A compiled rule."""

    @property
    def needs(self) -> Needs:
        """The facts of a call that it uses."""

    def denies(self, facts: Mapping[str, Any]) -> bool:
        """Return whether a call is denied; an error in the evaluation denies it."""


class RuleNotCompiled(ValueError):
    """A rule is not a valid boolean expression; the text is the reason, on one line."""


class RulesNotInstalled(RuleNotCompiled):
    """The package that evaluates rules is not installed; the text says which, and how to get it."""


@functools.cache
def cel_environment() -> tuple[Any, Any]:
    """Return the CEL module and the environment of all rules."""
    try:
        from cel_expr_python import cel
    except ImportError:
        raise RulesNotInstalled(
            "the package cel-expr-python is not installed (pip install 'leaseway[rules]')"
        ) from None
    types = dict.fromkeys(VARIABLES, cel.Type.STRING) | {"args": cel.Type.DYN}
    return cel, cel.NewEnv(variables=types)


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

    @staticmethod
    def of_expression(text: str) -> Needs:
        """Return the needs of an expression; names inside string literals count too.

        Of the inner names, texts count if they are looked up, or if any computed name is.
        """
        members = {match[1] for match in _ARGUMENTS.finditer(text)}
        takes_all = None in members
        return Needs(
            frozenset(_NAMED.findall(text)),
            None if takes_all else frozenset(members),
            _names_looked_up(text if takes_all else _ARGUMENTS.sub("args", text)),
        )

    def __or__(self, other: Needs) -> Needs:
        mine, others = self._members, other._members
        inner = self._inner | other._inner
        if mine is not None and others is not None:
            return Needs(self._names | other._names, mine | others, inner)
        return Needs(self._names | other._names, None, inner | (mine or others or frozenset()))

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


def _names_looked_up(text: str) -> frozenset[str]:
    found: set[str] = set()
    others: set[str] = set()
    any_text = False
    for plain, quoted, index, member, other, computed in _SELECTED.findall(text):
        found.update(name for name in (plain, quoted) if name)
        found.update(_value_of(name) for name in (index, member) if name)
        if other:
            others.add(_value_of(other))
        any_text = any_text or bool(computed)
    return frozenset(found | others if any_text else found)


def _value_of(text: str) -> str:
    """Return the value of a text of CEL, whose escapes are those of Python."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text.strip("rRbB\"'")
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


_NOTHING: Final = Needs(frozenset(), frozenset())
_FAILURES: Final = (RuntimeError, TypeError, ValueError, OverflowError)


class _Compiled:
    __slots__ = ("_eval", "needs")

    def __init__(self, compiled: Any, needs: Needs) -> None:
        self._eval = compiled.eval
        self.needs = needs

    def denies(self, facts: Mapping[str, Any]) -> bool:
        try:
            # Everything but CEL's `false` denies, including errors and numbers.
            return self._eval(None, self.needs.select(facts)).value() is not False
        except _FAILURES:
            return True

    def denies_in(self, activation: Any) -> bool:
        """Return whether a call is denied, by facts that CEL has already converted."""
        try:
            return self._eval(activation).value() is not False
        except _FAILURES:
            return True


class DeniesAll:
    """Replaces a rule that the worker cannot compile.

    Args:
        why: The reason, for the callers that it denies.
    """

    needs: Final = _NOTHING

    def __init__(self, why: str) -> None:
        self.why = why

    def denies(self, facts: Mapping[str, Any]) -> bool:
        return True


class Expressions:
    """Compiled rules that are evaluated together, in order."""

    __slots__ = ("_all", "_compiled", "_needs", "_only")

    def __init__(self, expressions: Sequence[Expression]) -> None:
        self._all = tuple(expressions)
        self._compiled = [rule for rule in self._all if isinstance(rule, _Compiled)]
        self._needs = functools.reduce(Needs.__or__, (rule.needs for rule in self._all), _NOTHING)
        self._only = self._all[0] if len(self._all) == 1 else None

    def can_judge(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the rules can judge arguments; see `Needs.are_met_by`."""
        return not self._all or self._needs.are_met_by(arguments)

    def first_that_denies(self, facts: Mapping[str, Any]) -> int | None:
        """Return the index of the first rule that denies a call, or None."""
        if self._only is not None:
            return 0 if self._only.denies(facts) else None
        if len(self._compiled) > 1 and len(self._compiled) == len(self._all):
            try:
                activation = cel_environment()[1].Activation(self._needs.select(facts))
            except _FAILURES:  # some value has no CEL form: find the rule that uses it
                pass
            else:
                if not any(compiled.denies_in(activation) for compiled in self._compiled):
                    return None
                # CEL converts late: the error may be of a value that only another rule uses.
        for index, expression in enumerate(self._all):
            if expression.denies(facts):
                return index
        return None


def compile_expression(text: str) -> Expression:
    """Return the compiled form of a rule.

    Raises:
        RuleNotCompiled: It does not compile, or its value cannot be a boolean.
        RulesNotInstalled: There is no package for rules.
    """
    cel, environment = cel_environment()
    try:
        compiled = environment.compile(text)
    except RuntimeError as error:
        lines = str(error).removeprefix("INVALID_ARGUMENT: ERROR: ").splitlines()
        why = lines[0][:300] if lines else "it does not parse"
        if "undeclared reference" in why:
            why += f"; a rule has the variables {', '.join(VARIABLES)}, and CEL's own functions"
        raise RuleNotCompiled(why) from None
    kind = compiled.return_type()
    if kind not in (cel.Type.BOOL, cel.Type.DYN):
        raise RuleNotCompiled(f"its value is {kind}, and must be true or false")
    return _Compiled(compiled, Needs.of_expression(text))
