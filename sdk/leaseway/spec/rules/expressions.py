"""CEL rules on arguments: compiled by the control plane as a check, and by workers.

The `cel-expr-python` package (Google's C++ implementation, the extra `rules`) evaluates them; it is
imported with the first rule. It copies its input value by value, which takes longer than the rule
itself, so it gets only the variables and members that the rules of a tool use, once for all rules.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from leaseway.spec.rules.needs import NOTHING, VARIABLES, Needs, Reading, read_expression

METHODS: Final = (
    "tools/call",
    "resources/read",
    "resources/subscribe",
    "prompts/get",
    "completion/complete",
)
"""The requests that rules judge."""


class Expression(Protocol):
    """A compiled rule."""

    @property
    def needs(self) -> Needs:
        """The facts of a call that it uses."""

    @property
    def compared(self) -> frozenset[tuple[str, str]]:
        """The texts with which it compares variables, as (variable, text)."""

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


_FAILURES: Final = (RuntimeError, TypeError, ValueError, OverflowError)


class _Compiled:
    __slots__ = ("_eval", "compared", "needs", "work")

    def __init__(self, compiled: Any, reading: Reading) -> None:
        self._eval = compiled.eval
        self.needs = reading.needs
        self.compared = reading.compared
        self.work = reading.work

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

    needs: Final = NOTHING
    compared: Final = frozenset[tuple[str, str]]()

    def __init__(self, why: str) -> None:
        self.why = why

    def denies(self, facts: Mapping[str, Any]) -> bool:
        return True


class Expressions:
    """Compiled rules that are evaluated together, in order."""

    __slots__ = ("_all", "_compiled", "_needs", "_only", "_works")

    def __init__(self, expressions: Sequence[Expression]) -> None:
        self._all = tuple(expressions)
        self._compiled = [rule for rule in self._all if isinstance(rule, _Compiled)]
        self._needs = functools.reduce(Needs.__or__, (rule.needs for rule in self._all), NOTHING)
        works = (rule.work for rule in self._compiled)
        self._works = tuple(work for work in works if work.bodies or work.searched)
        self._only = self._all[0] if len(self._all) == 1 else None

    def can_judge(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the rules can judge arguments: see `Needs.are_met_by` and `TextWork`."""
        if not self._all:
            return True
        return self._needs.are_met_by(arguments) and all(
            work.is_little(arguments) for work in self._works
        )

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
    try:
        reading = read_expression(compiled.serialize())
    except ValueError as error:
        why = f"this version of cel-expr-python is not known to Leaseway: {error}"
        raise RuleNotCompiled(why) from None
    for variable, text in sorted(reading.compared):
        if variable == "method" and text not in METHODS:
            raise RuleNotCompiled(
                f"it compares method with '{text[:64]}', which it never is; the methods that rules "
                f"judge are {', '.join(METHODS)}"
            )
    if reading.takes_patterns:
        raise RuleNotCompiled(
            "its regular expression is the caller's, who could write one that takes minutes;"
            " write it in the rule, where it may contain the tenant"
        )
    for pattern in sorted(reading.patterns):
        _check_pattern(pattern)
    return _Compiled(compiled, reading)


def _check_pattern(pattern: str) -> None:
    """Check a regular expression, which CEL itself reads only when a rule is evaluated.

    Raises:
        RuleNotCompiled: It is none, so that the rule would deny every call.
    """
    _, environment = cel_environment()
    try:
        found = environment.compile("''.matches(tool)").eval(None, {"tool": pattern}).value()
    except _FAILURES as error:
        found = str(error)
    if not isinstance(found, bool):
        why = str(found).partition("\n")[0][:200]
        raise RuleNotCompiled(f"{pattern[:64]!r} is no regular expression of RE2 ({why})")
