"""Rules on arguments, in CEL: compiled where the configuration is read, and again on workers.

The `cel-expr-python` package (Google's C++ implementation) evaluates them. It is imported when the
first rule is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, Protocol

VARIABLES: Final = ("tool", "tenant", "agent", "session", "args")
"""What an expression may name; `args` is what it makes of the call's arguments, the rest text."""


class Expression(Protocol):
    """A compiled rule."""

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


class _Compiled:
    __slots__ = ("_eval",)

    def __init__(self, compiled: Any) -> None:
        self._eval = compiled.eval

    def denies(self, facts: Mapping[str, Any]) -> bool:
        try:
            # Anything but CEL's own `false` denies, errors and numbers among it.
            return self._eval(data=facts).value() is not False
        except (RuntimeError, TypeError, ValueError, OverflowError):
            return True


class DeniesAll:
    """What a worker has in place of a rule that it cannot compile."""

    def denies(self, facts: Mapping[str, Any]) -> bool:
        return True


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
    return _Compiled(compiled)
