"""Settings of sinks: variables of the process that no MCP server inherits, or what they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leaseway.data_plane.audit.sinks.port import SinkError
from leaseway.wire.bounds import KIB
from leaseway.wire.secrets.redaction import hide

_OWN_PREFIX: Final = "LEASEWAY_AUDIT_"
_IN_FILE: Final = "_FILE"
_IN_VAULT: Final = "_SECRET"
_PATHS: Final = frozenset({"web_identity_token_file"})
"""Settings that are the path of a file themselves."""
_MAX_FILE: Final = 64 * KIB
_SECRET_WORDS: Final = ("secret", "password", "token")


class SecretMissing(Exception):
    """There is no such secret; the text completes "LEASEWAY_AUDIT_..._SECRET refers to ..."."""


def _no_secrets(name: str) -> str:
    raise SecretMissing(f"refers to the secret {name}, and there is no vault here")


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Where sinks find their settings.

    Attributes:
        environment: The variables of the process.
        read_secret: Returns the secret of a name, as `{secret: NAME}` of a server does; raises
            `SecretMissing`. It may block.
    """

    environment: Mapping[str, str]
    read_secret: Callable[[str], str] = _no_secrets

    def of(self, family: str) -> dict[str, str]:
        """Return the settings of a family of sinks, such as `AWS_`, in small letters.

        A variable whose name ends with `_FILE` names a file with the value, such as a mounted
        secret; one that ends with `_SECRET` names a secret. Secrets are redacted from all later log
        lines of this process.

        Raises:
            SinkError: A file or secret cannot be read, or a setting is given twice; the text says
                which variable names it.
        """
        start = f"{_OWN_PREFIX}{family}"
        settings: dict[str, str] = {}
        for variable, text in self.environment.items():
            if not variable.startswith(start) or not text:
                continue
            name, value, is_secret = self._setting(variable, variable.removeprefix(start), text)
            if name in settings:
                raise SinkError(f"{start}{name.upper()} is set twice: {variable} is one of them.")
            if is_secret or any(word in name for word in _SECRET_WORDS):
                hide((value,), variable)
            settings[name] = value
        return settings

    def _setting(self, variable: str, name: str, text: str) -> tuple[str, str, bool]:
        """Return the name and the value of a setting, and whether it is a secret by its place."""
        if name.endswith(_IN_FILE) and name.lower() not in _PATHS:
            return name.removesuffix(_IN_FILE).lower(), _read(variable, Path(text)), False
        if name.endswith(_IN_VAULT):
            try:
                value = self.read_secret(text)
            except SecretMissing as missing:
                raise SinkError(f"{variable} {missing}.") from None
            return name.removesuffix(_IN_VAULT).lower(), value, True
        return name.lower(), text, False


def _read(variable: str, path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise SinkError(
            f"The file that {variable} names cannot be read ({type(error).__name__})."
        ) from None
    if len(text) > _MAX_FILE:
        raise SinkError(f"The file that {variable} names is longer than {_MAX_FILE} bytes.")
    return text.strip()
