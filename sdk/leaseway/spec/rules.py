"""Rules on arguments, in CEL: compiled where the configuration is read, and again on workers.

The `cel-expr-python` package (Google's C++ implementation) evaluates them. It is imported when the
first rule is compiled. What it is given of a call it copies value by value, which takes longer than
the rule itself: it gets what the rules of a tool name, and gets that once for all of them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

VARIABLES: Final = ("tool", "tenant", "agent", "session", "args")
"""What an expression may name; `args` is what it makes of the call's arguments, the rest text."""

_NAMED: Final = re.compile(rf"\b(?:{'|'.join(VARIABLES[:-1])})\b")
_ARGUMENTS: Final = re.compile(r"\bargs\b(?:\s*\.\s*([A-Za-z_]\w*)(?!\w|\s*\())?")
"""Each place that names `args`, with the member that is selected there, if nothing else is done."""


class Expression(Protocol):
    """A compiled rule."""

    @property
    def needs(self) -> Needs:
        """What of a call it names."""

    def denies(self, facts: Mapping[str, Any]) -> bool:
        """Return whether a call is denied; what cannot be evaluated denies."""


class RuleNotCompiled(ValueError):
    """A rule is no expression that is true or false; the text says why, on one line."""


@functools.cache
def _cel() -> tuple[Any, Any]:
    """Return CEL's module and the environment of all rules."""
    try:
        from cel_expr_python import cel
    except ImportError:
        raise RuleNotCompiled(
            "rules need the package cel-expr-python: pip install 'leaseway[serving]'"
        ) from None
    types = dict.fromkeys(VARIABLES, cel.Type.STRING) | {"args": cel.Type.DYN}
    return cel, cel.NewEnv(variables=types)


class Needs:
    """What expressions name of a call; more at most, never less.

    Args:
        names: Variables besides `args`.
        members: Members of `args`; None for all that there are.
    """

    __slots__ = ("_members", "_names")

    def __init__(self, names: frozenset[str], members: frozenset[str] | None) -> None:
        self._names = names
        self._members = members

    @staticmethod
    def of(text: str) -> Needs:
        """Return what an expression names; what only looks like a name, in a text, counts too."""
        members = {found[1] for found in _ARGUMENTS.finditer(text)}
        return Needs(
            frozenset(_NAMED.findall(text)),
            None if None in members else frozenset(members),
        )

    def __or__(self, other: Needs) -> Needs:
        mine, others = self._members, other._members
        both = mine | others if mine is not None and others is not None else None
        return Needs(self._names | other._names, both)

    def chosen(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is needed of all that is known of a call."""
        chosen = {name: facts[name] for name in self._names}
        args = facts["args"]
        if self._members is None:
            chosen["args"] = args
        elif self._members:
            chosen["args"] = {name: args[name] for name in self._members if name in args}
        return chosen


_NOTHING: Final = Needs(frozenset(), frozenset())
_FAILURES: Final = (RuntimeError, TypeError, ValueError, OverflowError)


class _Compiled:
    __slots__ = ("_eval", "needs")

    def __init__(self, compiled: Any, needs: Needs) -> None:
        self._eval = compiled.eval
        self.needs = needs

    def denies(self, facts: Mapping[str, Any]) -> bool:
        try:
            # Anything but CEL's own `false` denies, errors and numbers among it.
            return self._eval(None, self.needs.chosen(facts)).value() is not False
        except _FAILURES:
            return True

    def denies_in(self, activation: Any) -> bool:
        """Return whether a call is denied whose facts CEL has already."""
        try:
            return self._eval(activation).value() is not False
        except _FAILURES:
            return True


class DeniesAll:
    """What a worker has in place of a rule that it cannot compile."""

    needs: Final = _NOTHING

    def denies(self, facts: Mapping[str, Any]) -> bool:
        return True


class Expressions:
    """Compiled rules that are evaluated together, in their order.

    Args:
        expressions: The rules.
    """

    __slots__ = ("_all", "_compiled", "_needs")

    def __init__(self, expressions: Sequence[Expression]) -> None:
        self._all = tuple(expressions)
        self._compiled = [each for each in self._all if isinstance(each, _Compiled)]
        self._needs = functools.reduce(Needs.__or__, (each.needs for each in self._all), _NOTHING)

    def first_that_denies(self, facts: Mapping[str, Any]) -> int | None:
        """Return the place of the first rule that denies a call, or None."""
        if len(self._compiled) > 1 and len(self._compiled) == len(self._all):
            try:
                activation = _cel()[1].Activation(self._needs.chosen(facts))
            except _FAILURES:  # the rule that names what has no form in CEL is to be found
                pass
            else:
                for place, compiled in enumerate(self._compiled):
                    if compiled.denies_in(activation):
                        return place
                return None
        for place, expression in enumerate(self._all):
            if expression.denies(facts):
                return place
        return None


def compile_expression(text: str) -> Expression:
    """Return the compiled form of a rule.

    Raises:
        RuleNotCompiled: It does not compile, or its value cannot be true or false.
    """
    cel, environment = _cel()
    try:
        compiled = environment.compile(text)
    except RuntimeError as error:
        lines = str(error).removeprefix("INVALID_ARGUMENT: ERROR: ").splitlines()
        raise RuleNotCompiled(lines[0][:300] if lines else "it does not parse") from None
    kind = compiled.return_type()
    if kind not in (cel.Type.BOOL, cel.Type.DYN):
        raise RuleNotCompiled(f"its value is {kind}, and must be true or false")
    return _Compiled(compiled, Needs.of(text))
