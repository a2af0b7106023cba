"""Where and how a signal is sent by OTLP over HTTP, from the standard variables.

Variables of a signal, such as `OTEL_EXPORTER_OTLP_TRACES_HEADERS`, override those of all signals.
An empty variable counts as unset.
"""

from __future__ import annotations

import logging
import math
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from leaseway.telemetry.otlp.variables import OTLP, OtlpVariables

_logger = logging.getLogger(__name__)

_DEFAULT_ENDPOINT: Final = "http://localhost:4318"
_DEFAULT_TIMEOUT: Final = 10.0
LONGEST_TIMEOUT: Final = 60.0
"""Seconds. A process must not hold a batch for longer, because newer spans wait behind it."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_OWN_HEADERS: Final = frozenset(
    {"connection", "content-encoding", "content-length"}
    | {"content-type", "host", "transfer-encoding"}
)


@dataclass(frozen=True)
class HttpSettings:
    """How one signal is sent.

    Attributes:
        signal: `traces`, `metrics` or `logs`.
        url: The address to which requests are posted.
        headers: Further headers by their names in lower case; their values are secret.
        timeout: Seconds for one batch with all its retries.
        is_compressed: Whether requests are compressed by gzip.
        tls: The certificates for `https`, or None.
    """

    signal: str
    url: SplitResult
    headers: Mapping[str, str] = field(repr=False)
    timeout: float = _DEFAULT_TIMEOUT
    is_compressed: bool = False
    tls: ssl.SSLContext | None = None


def http_settings(signal: str, variables: Mapping[str, str]) -> HttpSettings:
    """Return the settings of a signal.

    Args:
        signal: `traces`, `metrics` or `logs`.
        variables: The environment.

    Raises:
        ValueError: A variable cannot be used; the message names it, without its value if that may
            be secret.
    """
    read = OtlpVariables(signal, variables)
    url = _url(read)
    return HttpSettings(
        signal=signal,
        url=url,
        headers=_headers(read),
        timeout=_timeout(read),
        is_compressed=_is_compressed(read),
        tls=_tls(read) if url.scheme == "https" else None,
    )


def _url(read: OtlpVariables) -> SplitResult:
    """Return the address: a signal's own is used as it is, the path is added to the common one."""
    variable, endpoint = read.find("ENDPOINT")
    url = urlsplit(endpoint or _DEFAULT_ENDPOINT)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"{variable} is no http or https address, such as {_DEFAULT_ENDPOINT}.")
    if url.username is not None:
        raise ValueError(f"{variable} contains a user; write credentials in {OTLP}HEADERS.")
    _ = url.port  # raises ValueError if it is none
    path = url.path or "/"
    if variable != read.own("ENDPOINT"):
        path = f"{url.path.removesuffix('/')}/v1/{read.signal}"
    return url._replace(path=path, fragment="")


def _headers(read: OtlpVariables) -> dict[str, str]:
    variable, text = read.find("HEADERS")
    headers: dict[str, str] = {}
    for number, entry in enumerate(text.split(","), start=1):
        if not entry.strip():
            continue
        name, equals, value = entry.partition("=")
        name, value = unquote(name).strip().lower(), unquote(value).strip()
        if not equals or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(
                f"{variable}: entry {number} is no NAME=VALUE; separate entries by commas, and "
                "write other characters percent-encoded, such as %2C for a comma."
            )
        if name in _OWN_HEADERS:
            raise ValueError(f"{variable}: the exporter itself sets the header '{name}'.")
        headers[name] = value
    return headers


def _timeout(read: OtlpVariables) -> float:
    variable, text = read.find("TIMEOUT")
    if not text:
        return _DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{variable} is no positive number of seconds.")
    if seconds > LONGEST_TIMEOUT:
        _logger.warning(
            f"{variable} is read in seconds, as the OpenTelemetry SDK for Python does; at most "
            f"{LONGEST_TIMEOUT:g} apply."
        )
    return min(seconds, LONGEST_TIMEOUT)


def _is_compressed(read: OtlpVariables) -> bool:
    variable, text = read.find("COMPRESSION")
    if text.lower() not in ("", "none", "gzip"):
        raise ValueError(f"{variable} is neither gzip nor none.")
    return text.lower() == "gzip"


def _tls(read: OtlpVariables) -> ssl.SSLContext:
    variable, path = read.find("CERTIFICATE")
    try:
        context = ssl.create_default_context(cafile=path or None)
    except OSError as error:
        raise ValueError(f"{variable} cannot be used: {error.strerror or error}.") from None
    chain_variable, chain = read.find("CLIENT_CERTIFICATE")
    key_variable, key = read.find("CLIENT_KEY")
    if chain:
        try:
            # Without a password, an encrypted key would ask for one on the terminal.
            context.load_cert_chain(chain, key or None, password="")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(
                f"{chain_variable} and {key_variable} cannot be used: {reason}."
            ) from None
    elif key:
        raise ValueError(f"{key_variable} is set without {chain_variable}.")
    return context
