"""TLS for every listener and client, with certificate files that may change at run time.

The same environment variables configure planes, services and commands. Listeners check their files
at each new connection, clients before each RPC.
"""

from __future__ import annotations

import codecs
import functools
import os
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import grpc

from leaseway.wire.bounds import MIB
from leaseway.wire.channels.endpoint import NO_WEB_PROXY, grpc_target, is_loopback_host
from leaseway.wire.channels.replaceable_channel import ReplaceableChannel
from leaseway.wire.file_stamp import file_stamp
from leaseway.wire.secrets.trusted_files import (
    UntrustedFile,
    named_path,
    read_trusted,
)

CA_VARIABLE: Final = "LEASEWAY_TLS_CA"
CERTIFICATE_VARIABLE: Final = "LEASEWAY_TLS_CERT"
KEY_VARIABLE: Final = "LEASEWAY_TLS_KEY"
CLIENT_CA_VARIABLE: Final = "LEASEWAY_TLS_CLIENT_CA"
NAME_VARIABLE: Final = "LEASEWAY_TLS_NAME"
_PROXY_VARIABLE: Final = "grpc_proxy"
_MAX_FILE: Final = 1 * MIB
_MAX_KNOWN: Final = 16
_GRACE: Final = 24 * 3600.0
"""Seconds for the RPCs of a connection with old certificates to complete."""


@dataclass(frozen=True)
class Tls:
    """The certificate files of a process, in PEM; None for unused ones.

    Attributes:
        ca: Authorities that sign listeners; if set, the process connects only with TLS.
        certificate: The process's own chain, for its listeners and, if requested, its clients.
        client_ca: Authorities that sign clients; if set, every client needs a certificate.
        name: The name in the listeners' certificates, if it is not their address.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    name: str = ""

    @property
    def serves(self) -> bool:
        return self.certificate is not None


def read_tls(environment: Mapping[str, str] = os.environ) -> Tls:
    """Read the configuration from environment variables; paths become absolute.

    Raises:
        ValueError: The variables contradict each other, or name a file in nobody's home folder.
    """

    def path(variable: str) -> Path | None:
        name = environment.get(variable, "").strip()
        return named_path(variable, name) if name else None

    tls = Tls(
        ca=path(CA_VARIABLE),
        certificate=path(CERTIFICATE_VARIABLE),
        key=path(KEY_VARIABLE),
        client_ca=path(CLIENT_CA_VARIABLE),
        name=environment.get(NAME_VARIABLE, ""),
    )
    if (tls.certificate is None) != (tls.key is None):
        raise ValueError(f"Set both {CERTIFICATE_VARIABLE} and {KEY_VARIABLE}, or neither.")
    if tls.client_ca is not None and not tls.serves:
        raise ValueError(
            f"{CLIENT_CA_VARIABLE} is for listeners with a certificate: set "
            f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE}, too."
        )
    return tls


def read_client_tls() -> Tls:
    """Read the configuration for a client.

    Raises:
        ValueError: The variables contradict each other, or a client cannot use the files.
    """
    tls = read_tls()
    if tls.ca is not None:
        _check_client(tls)
    return tls


def open_channel(
    address: str, options: Sequence[tuple[str, Any]], tls: Tls | None = None, name: str = ""
) -> grpc.aio.Channel:
    """Open a channel to a plane, with TLS if `LEASEWAY_TLS_CA` is set.

    Args:
        address: The plane's HOST:PORT.
        tls: The certificate files; None means those of the environment now.
        name: The name in the plane's certificate, if it is not the address and `tls` has none.

    Raises:
        ValueError: A file cannot be read, or the variables contradict each other.
    """
    tls = tls or read_tls()
    tls = replace(tls, name=tls.name or name)
    options = [*options, *_without_web_proxies(address)]
    if tls.ca is None:
        return grpc.aio.insecure_channel(grpc_target(address), options=options)
    return _TlsChannel(tls, address, options)


_NO_CONNECTION: Final = "failed to connect"
_CAUSES: Final = {
    "certificate has expired": "Its certificate, or one of an authority above it, has expired.",
    "certificate is not yet valid": "Its certificate, or one of an authority above it, is not "
    "valid yet: compare the clocks of both machines.",
    "CERTIFICATE_VERIFY_FAILED": f"No authority in {CA_VARIABLE} has signed its certificate.",
    "Hostname Verification": "Its certificate is for another name: connect to that name, or set "
    f"{NAME_VARIABLE} to it.",
    "WRONG_VERSION_NUMBER": f"It does not use TLS, but this client does, because of {CA_VARIABLE}.",
}
"""What gRPC says of a handshake that failed, and what that means."""
_CLOSED: Final = ("Socket closed", "Connection reset by peer", "Broken pipe")
"""What it says if the other side has closed, by whether something was still to be read."""


def cause_in_tls(details: str) -> str:
    """Return why TLS keeps a client from connecting, as a sentence; empty for another reason.

    Args:
        details: The details of gRPC's error.
    """
    if not details.startswith(_NO_CONNECTION):
        return ""
    return next((cause for said, cause in _CAUSES.items() if said in details), "")


def hint_at_tls(details: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return how TLS may explain that the other side closes connections; empty for other errors.

    Args:
        details: The details of gRPC's error.
        environment: The environment variables of the client.
    """
    if not (details.startswith(_NO_CONNECTION) and any(said in details for said in _CLOSED)):
        return ""
    if not environment.get(CA_VARIABLE):
        return f"It closes connections: if it uses TLS, set {CA_VARIABLE}."
    if not environment.get(CERTIFICATE_VARIABLE):
        return (
            "It closes connections: if it requires a certificate of its clients, set "
            f"{CERTIFICATE_VARIABLE} and {KEY_VARIABLE}."
        )
    return (
        "It closes connections: if it requires a certificate of its clients, it may not accept the "
        f"one in {CERTIFICATE_VARIABLE}."
    )


def _without_web_proxies(address: str) -> Sequence[tuple[str, Any]]:
    """Return the options of a channel that uses no proxy but one that is meant for it.

    A proxy for the web knows neither this machine's loopback nor, as a rule, a cluster's names.
    """
    host = address.rpartition(":")[0]
    if os.environ.get(_PROXY_VARIABLE) and not is_loopback_host(host):
        return ()
    return NO_WEB_PROXY


class _TlsChannel(ReplaceableChannel):
    """A channel that follows its certificate files.

    After a change, new RPCs use a new connection. If the files are invalid, the channel stays as it
    is, and they are checked again before the next RPC.
    """

    def __init__(self, tls: Tls, address: str, options: Sequence[tuple[str, Any]]) -> None:
        self._tls = tls
        self._address = address
        self._options = options
        self._files = _Files(tls.ca, tls.certificate, tls.key)
        super().__init__(self._open())
        try:
            _check_client(tls)
        except ValueError:
            self._files.forget()  # they may be changing just now

    def _open(self) -> grpc.aio.Channel:
        tls = self._tls
        own = (_read(tls.key), _read(tls.certificate)) if tls.serves else (None, None)
        authorities = _read(tls.ca) or b"none"  # for an empty file gRPC would trust public ones
        credentials = grpc.ssl_channel_credentials(authorities, *own)
        named = [("grpc.ssl_target_name_override", tls.name)] if tls.name else []
        return grpc.aio.secure_channel(
            grpc_target(self._address), credentials, options=[*self._options, *named]
        )

    def _refresh(self) -> None:
        if not self._files.changed():
            return
        try:
            _check_client(self._tls)  # the key may not match its certificate yet
            self._replace(self._open(), _GRACE)
        except ValueError:
            self._files.forget()


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return the credentials of a gRPC listener, which follow their files.

    Raises:
        ValueError: A file cannot be read.
    """
    files = _Files(tls.certificate, tls.key, tls.client_ca)

    def configuration() -> Any:
        return grpc.ssl_server_certificate_configuration(
            [(_read(tls.key), _read(tls.certificate))],
            None if tls.client_ca is None else _read(tls.client_ca),
        )

    def fetch() -> Any:
        if not files.changed():
            return None
        try:
            _context(tls)  # the key may not match its certificate yet
            return configuration()
        except ValueError:
            files.forget()
            return None

    _context(tls)
    return grpc.dynamic_ssl_server_credentials(
        configuration(), fetch, require_client_authentication=tls.client_ca is not None
    )


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of an HTTP listener, which follows its files.

    Raises:
        ValueError: A file cannot be used.
    """
    files = _Files(tls.certificate, tls.key, tls.client_ca)
    context = _context(tls)
    newest = [context]

    def on_hello(connection: Any, _name: str | None, _context_of: ssl.SSLContext) -> None:
        if files.changed():
            try:
                newest[0] = _context(tls)
            except ValueError:
                files.forget()
        connection.context = newest[0]

    context.sni_callback = on_hello  # wired late: ssl takes it in no other way
    return context


def _context(tls: Tls) -> ssl.SSLContext:
    assert tls.certificate is not None
    for path in (tls.certificate, tls.key, tls.client_ca):
        if path is not None:
            _read(path)  # checks that other users cannot change it
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key, _no_password)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"The certificate {tls.certificate} cannot be used with the key {tls.key}: "
            f"{error.strerror or error}."
        ) from None
    return context


def _check_client(tls: Tls) -> None:
    """Raise a ValueError if the files for clients cannot be used."""
    paths = (tls.ca, tls.certificate, tls.key)
    _check_client_files(tls, tuple(file_stamp(path) for path in paths if path))


@functools.lru_cache(
    _MAX_KNOWN
)  # each channel asks, and a bundle of public authorities takes 25 ms
def _check_client_files(tls: Tls, _stamps: tuple[object, ...]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _read(tls.ca)
    try:
        context.load_verify_locations(tls.ca)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"{tls.ca} ({CA_VARIABLE}) holds no certificates in PEM, from '-----BEGIN CERTIFICATE"
            f"-----' to '-----END CERTIFICATE-----', each at the start of a line: {_why(error)}."
        ) from None
    if tls.certificate is None:
        return
    _read(tls.certificate)
    _read(tls.key)
    try:
        context.load_cert_chain(tls.certificate, tls.key, _no_password)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"The certificate {tls.certificate} cannot be used with the key {tls.key}: "
            f"{_why(error)}."
        ) from None


def _no_password() -> str:
    # Otherwise ssl asks for one on the terminal, and waits.
    raise ValueError("The key of a certificate must have no password: openssl rsa -in KEY -out NEW")


def _why(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)


class _Files:
    """Detects changes of files since the last check."""

    def __init__(self, *paths: Path | None) -> None:
        self._paths = [path for path in paths if path]
        self._lock = threading.Lock()
        self._seen: object = self._stamps()

    def changed(self) -> bool:
        with self._lock:
            stamps = self._stamps()
            differ = stamps != self._seen
            self._seen = stamps
            return differ

    def forget(self) -> None:
        """Make the next check report a change."""
        self._seen = None

    def _stamps(self) -> tuple[object, ...]:
        return tuple(map(file_stamp, self._paths))


def _read(path: Path | None) -> bytes:
    assert path is not None
    try:
        return read_trusted(path, _MAX_FILE)[:_MAX_FILE].removeprefix(codecs.BOM_UTF8)
    except UntrustedFile as error:
        raise ValueError(str(error)) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
