"""Settings of sinks, from variables of the process that no MCP server inherits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from leaseway.data_plane.audit.sinks.port import SinkError
from leaseway.wire.bounds import KIB
from leaseway.wire.secrets.redaction import hide

_OWN_PREFIX: Final = "LEASEWAY_AUDIT_"
_IN_FILE: Final = "_FILE"
_PATHS: Final = frozenset({"web_identity_token_file"})
"""Settings that are the path of a file themselves."""
_MAX_FILE: Final = 64 * KIB
_SECRET_WORDS: Final = ("secret", "password", "token")


def own_settings(environment: Mapping[str, str], family: str) -> dict[str, str]:
    """Return the settings of a family of sinks, such as `AWS_`, in small letters.

    A variable whose name ends with `_FILE` names a file with the value, such as a mounted secret.
    Secrets are redacted from all later log lines of this process.

    Raises:
        SinkError: A file cannot be read; the text says which variable names it.
    """
    start = f"{_OWN_PREFIX}{family}"
    settings: dict[str, str] = {}
    for variable, text in environment.items():
        if not variable.startswith(start) or not text:
            continue
        name = variable.removeprefix(start)
        value = text
        if name.endswith(_IN_FILE) and name.lower() not in _PATHS:
            name, value = name.removesuffix(_IN_FILE), _read(variable, Path(text))
        if any(word in name.lower() for word in _SECRET_WORDS):
            hide((value,), variable)
        settings[name.lower()] = value
    return settings


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
