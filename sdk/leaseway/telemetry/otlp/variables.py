"""The standard variables of OTLP exporters, as one signal reads them.

Those of a signal, such as `OTEL_EXPORTER_OTLP_TRACES_HEADERS`, override those of all signals. An
empty variable counts as unset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OTLP: Final = "OTEL_EXPORTER_OTLP_"
"""How the names of all of them begin."""


class OtlpVariables:
    """Reads the variables of a signal.

    Args:
        signal: `traces`, `metrics` or `logs`.
        variables: The environment.

    Attributes:
        signal: As given.
    """

    def __init__(self, signal: str, variables: Mapping[str, str]) -> None:
        self.signal = signal
        self._variables = variables

    def own(self, name: str) -> str:
        """Return the name of the variable for this signal alone."""
        return f"{OTLP}{self.signal.upper()}_{name}"

    def find(self, name: str) -> tuple[str, str]:
        """Return the variable that applies, and its value; empty if both are unset."""
        own = self._get(self.own(name))
        return (self.own(name), own) if own else (OTLP + name, self._get(OTLP + name))

    def value(self, name: str) -> str:
        """Return the value that applies; empty if both variables are unset."""
        return self.find(name)[1]

    def _get(self, variable: str) -> str:
        return self._variables.get(variable, "").strip()
