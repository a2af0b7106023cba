"""The credential that a process sends with every request, as `authorization: Bearer KEY`.

It is the shared key of planes and trusted services, an API key or a token; `leaseway.identity`
checks it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from leaseway.wire.bounds import KIB
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.file_stamp import file_stamp
from leaseway.wire.secrets.redaction import hide
from leaseway.wire.secrets.trusted_files import (
    UntrustedFile,
    named_path,
    read_trusted,
)

KEY_VARIABLE: Final = "LEASEWAY_KEY"
"""The environment variable with the credential that a process sends."""

WORKER_KEY_VARIABLE: Final = "LEASEWAY_WORKER_KEY"
"""The environment variable with the credential that a worker sends to the control plane."""

SEAL_KEY_VARIABLE: Final = "LEASEWAY_SEAL_KEY"
"""The environment variable with the key by which control planes sign what they send to workers."""

_HEADER: Final = "authorization"
_SCHEME: Final = "bearer"
_MAX_KEY_FILE: Final = 64 * KIB
_RETRY: Final = 1.0
"""Seconds after which a file that could not be used is read again, though it looks the same."""

_logger = logging.getLogger(__name__)


def read_key(environment: Mapping[str, str], variable: str = KEY_VARIABLE) -> str | None:
    """Return the key from an environment variable, or from the file that `VARIABLE_FILE` names.

    The key is redacted from all later log lines of this process.

    Returns:
        The key, or None if both variables are unset or empty.

    Raises:
        ValueError: Both variables are set, the file cannot be read, or the key has characters that
            an HTTP header cannot hold; the message does not show it.
    """
    path = key_path(environment, variable)
    if path is not None:
        return CredentialFile(path).current()
    key = environment.get(variable, "")
    return checked_key(key, variable) if key else None


def key_path(environment: Mapping[str, str], variable: str = KEY_VARIABLE) -> Path | None:
    """Return the file that `VARIABLE_FILE` names, or None.

    Raises:
        ValueError: The variable with the key is set, too, or the file is in nobody's home folder.
    """
    path = environment.get(f"{variable}_FILE", "").strip()
    if path and environment.get(variable):
        raise ValueError(f"Set {variable} or {variable}_FILE, but not both.")
    return named_path(f"{variable}_FILE", path) if path else None


def checked_key(key: str, variable: str) -> str:
    """Return a key that can be sent, and redact it from all later log lines of this process.

    Raises:
        ValueError: It has characters that an HTTP header cannot hold; the message does not show it.
    """
    if not _fits_header(key):
        if _fits_header(key.strip()):
            raise ValueError(
                f"{variable} begins or ends with a space or a line break, which `echo` and editors "
                "add to files and Kubernetes Secrets: remove it (`printf %s KEY` writes none)."
            )
        raise ValueError(
            f"{variable} may only contain visible ASCII characters without spaces; "
            f"create one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    hide((key,), variable)
    return key


class CredentialFile:
    """A file with a credential that others replace, such as the token of a service account.

    Args:
        path: The file, relative to the home folder (`~`) or the folder of now. Spaces and line
            breaks around the credential are ignored.

    Raises:
        ValueError: It cannot be read, or holds no credential.
    """

    def __init__(self, path: Path) -> None:
        self._path = named_path("The file of the key", str(path))
        self._stamp: object = file_stamp(self._path)
        self._key = self._read()
        self._problem = ""
        self._again_at = math.inf

    def current(self) -> str:
        """Return the credential; the last one while the file cannot be used."""
        stamp = file_stamp(self._path)
        if stamp != self._stamp or time.monotonic() >= self._again_at:
            self._stamp, self._again_at = stamp, math.inf
            problem = ""
            try:
                self._key = self._read()
            except ValueError as error:
                self._again_at = time.monotonic() + _RETRY  # it may be written just now
                problem = str(error)
            if problem and problem != self._problem:
                _logger.warning("The last credential stays in use: %s", problem)
            self._problem = problem
        return self._key

    def _read(self) -> str:
        try:
            content = read_trusted(self._path, _MAX_KEY_FILE)
            key = content.decode("ascii").strip()
        except UntrustedFile as error:
            raise ValueError(str(error)) from None
        except OSError as error:
            raise ValueError(f"{self._path} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            key = ""
        if not key or len(content) > _MAX_KEY_FILE:
            raise ValueError(f"{self._path} holds no credential: one line of visible ASCII.")
        return checked_key(key, str(self._path))


def _fits_header(key: str) -> bool:
    return all("!" <= character <= "~" for character in key)


def bearer_metadata(key: str | None) -> tuple[tuple[str, str], ...]:
    """Return the gRPC metadata with the key; empty without one."""
    return ((_HEADER, f"Bearer {key}"),) if key else ()


def bearer_credential(authorization: str) -> str:
    """Return the credential in an `Authorization` header, or empty if it has no bearer credential.

    The name of the scheme has no case (RFC 9110, section 11.1): many clients send the `bearer` of
    the token's response.
    """
    scheme, _, credential = authorization.partition(" ")
    return credential.strip() if scheme.lower() == _SCHEME else ""


def check_listen(endpoint: Endpoint, credentials: object) -> None:
    """Check that a service without credentials listens on a loopback address only.

    Args:
        credentials: The shared key, or another way to authenticate callers; None for no checks.

    Raises:
        ValueError: Other machines could reach an unprotected service.
    """
    if credentials is None and not endpoint.is_loopback:
        raise ValueError(
            f"Listening on {endpoint} would let other machines in without a credential. "
            f"Set {KEY_VARIABLE} to a shared key, name API keys by --keys, or listen on "
            f"127.0.0.1:{endpoint.port}."
        )
