"""Objects in a stream of NATS JetStream, by `nats-py` (extra `audit-nats`): a message each.

The subject of a message is the name of its object, and it is published only if the stream has no
message with this subject, so that none is stored twice. Its id is the name, too: within the
stream's window a repeated message is acknowledged without being stored. The stream belongs to the
operator, who can deny that messages are deleted.

Credentials come from `SinkSettings` (`LEASEWAY_AUDIT_NATS_USER` and so on); each connection reads
them anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from leaseway.data_plane.audit.sinks.port import (
    ObjectExists,
    ObjectTooLarge,
    SinkError,
    StoredObject,
)
from leaseway.wire.bounds import KIB

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.client import JetStreamContext

_TIMEOUT: Final = 5.0
_CLOSE_TIMEOUT: Final = 1.0
_HEADERS_SIZE: Final = KIB
_NOT_THE_LAST: Final = 10071
"""The server's code for a subject that already has a message."""
_OVER_STREAM_LIMIT: Final = 10054
"""Its code for a message that is larger than the stream's `max_msg_size`."""
_STORES_NO_MORE: Final = frozenset({10023, 10047, 10077})
"""Its codes for a stream, an account or a server that has no room left."""
_REFUSALS: Final = {
    "authorization violation": "The server refuses the credentials in LEASEWAY_AUDIT_NATS_*.",
    "permissions violation": "The server denies it to the user in LEASEWAY_AUDIT_NATS_*.",
    "no response from stream": "No stream of the server has the subject: add it.",
}
"""What to do, by what the library says."""
_DOT: Final = "~"
"""Stands for a dot in the name of a run, where a subject would have two parts; no name has it."""


class NatsSink:
    """A part of the subjects of a stream.

    Args:
        server: The server, as nats://HOST:PORT, or tls://HOST:PORT to require TLS.
        stream: The stream.
        subject: What the subjects begin with.
        read_settings: Returns credentials, and the file of a certificate authority; called for
            each connection.

    Raises:
        SinkError: The library is not installed, or the settings are not valid.
    """

    part_size: Final = 512 * KIB  # below the default limit of messages, 1 MiB, also in base64

    def __init__(
        self, server: str, stream: str, subject: str, read_settings: Callable[[], Mapping[str, str]]
    ) -> None:
        self._server = server
        self._stream = stream
        self._subject = subject
        self._address = f"{server}/{stream}/{subject}"
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        try:
            import nats  # noqa: F401
        except ImportError:
            raise SinkError(
                f"The audit's sink {self._address} needs the extra: "
                "pip install 'leaseway[audit-nats]'"
            ) from None
        self._read_settings = read_settings
        _ = self._options()  # an error in them ends the start

    async def put(self, name: str, content: bytes) -> None:
        from nats.js.errors import APIError

        stream, client = await self._connected()
        headers = {"Nats-Msg-Id": name, "Nats-Expected-Last-Subject-Sequence": "0"}
        try:
            if len(content) + _HEADERS_SIZE > self._limit:
                raise ObjectTooLarge(
                    f"The audit's sink {self._address} takes messages of {self._limit} bytes, and "
                    f"one of {len(content)} has to be stored: raise the server's max_payload."
                )
            stored = await stream.publish(
                self._subject_of(name),
                content,
                timeout=_TIMEOUT,
                stream=self._stream,
                headers=headers,
            )
        except APIError as error:
            if error.err_code == _NOT_THE_LAST:
                raise ObjectExists(f"{self._address} already has {name}.") from None
            if error.err_code == _OVER_STREAM_LIMIT:
                raise ObjectTooLarge(
                    f"The audit's sink {self._address} takes no message of {len(content)} bytes: "
                    "raise its stream's max_msg_size."
                ) from None
            raise self._failed("be written", error) from None
        except _errors() as error:
            raise await self._given_up(client, "be written", error) from None
        if stored.duplicate:
            raise ObjectExists(f"{self._address} already has {name}.")

    async def get(self, name: str) -> bytes:
        stream, client = await self._connected()
        try:
            message = await stream.get_last_msg(self._stream, self._subject_of(name))
        except _errors() as error:
            raise await self._given_up(client, "be read", error) from None
        return message.data or b""

    async def objects(self, below: str = "") -> AsyncIterator[StoredObject]:
        stream, client = await self._connected()
        subject = f"{self._subject}.{below.rstrip('/').replace('.', _DOT)}".rstrip(".")
        try:
            messages = await stream.subscribe(
                f"{subject}.>", stream=self._stream, ordered_consumer=True, headers_only=True
            )
            try:
                info = await messages.consumer_info()
                waiting = info.num_pending or 0
                if info.delivered is not None:  # some of them may still be on their way
                    waiting += info.delivered.consumer_seq
                while waiting:
                    message = await messages.next_msg(timeout=_TIMEOUT)
                    waiting = message.metadata.num_pending
                    size = int((message.headers or {}).get("Nats-Msg-Size", "0"))
                    yield StoredObject(self._name_of(message.subject), size)
            finally:
                await messages.unsubscribe()
        except _errors() as error:
            raise await self._given_up(client, "be listed", error) from None

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    @property
    def _limit(self) -> int:
        return self._client.max_payload if self._client is not None else 0

    def _subject_of(self, name: str) -> str:
        run, _, part = name.partition("/")
        return f"{self._subject}.{run.replace('.', _DOT)}.{part}"

    def _name_of(self, subject: str) -> str:
        run, _, part = subject.removeprefix(f"{self._subject}.").partition(".")
        return f"{run.replace(_DOT, '.')}/{part}"

    async def _connected(self) -> tuple[JetStreamContext, Client]:
        """Return the stream's context, and its connection: the open one or a new one."""
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                client = _new_client(requires_tls=self._server.startswith("tls://"))
                try:
                    await self._connect(client)
                except BaseException:
                    await _close(client)  # a connection that failed half-way keeps its socket
                    raise
                self._client = client
            return self._client.jetstream(timeout=_TIMEOUT), self._client

    async def _connect(self, client: Client) -> None:
        options = await asyncio.to_thread(self._options)
        try:
            await client.connect(self._server, **options)
        except _errors() as error:
            raise self._failed("be reached", error) from None
        await self._check_stream(client)

    def _options(self) -> dict[str, Any]:
        return _connect_options(self._read_settings())

    async def _check_stream(self, client: Client) -> None:
        """Check that the stream keeps what it acknowledges.

        Raises:
            SinkError: It does not, or cannot be read.
        """
        try:
            config = (await client.jetstream(timeout=_TIMEOUT).stream_info(self._stream)).config
        except _errors() as error:
            raise self._failed("be read", error) from None
        if config.retention != "limits" or config.storage != "file":
            raise SinkError(
                f"The audit's sink {self._address} does not keep what it acknowledges: its stream "
                "needs file storage and the retention policy 'limits'."
            )

    async def _given_up(self, client: Client, what: str, error: BaseException) -> SinkError:
        """Return the error of a request; close a connection that did not answer it.

        The network may have dropped it without a word: the library notices that after minutes.
        """
        told = client.last_error if isinstance(error, TimeoutError) else None
        if isinstance(error, TimeoutError) and client is self._client:
            await self.aclose()
        return self._failed(what, error, told)

    def _failed(
        self, what: str, error: BaseException, told: BaseException | None = None
    ) -> SinkError:
        """Return an error with the kind of failure; what the server sent is not repeated.

        Args:
            told: The last error that the server has told, if the request had no answer.
        """
        kind = type(error).__name__.removesuffix("Error") or "Error"
        said = f"{error} {told}".lower()
        advice = next((advice for word, advice in _REFUSALS.items() if word in said), "")
        if getattr(error, "err_code", None) in _STORES_NO_MORE:
            advice = "It is full: raise max_bytes and max_msgs of its stream, or give it disk."
        return SinkError(
            f"The audit's sink {self._address} cannot {what} ({kind}). {advice}".strip()
        )


def _errors() -> tuple[type[Exception], ...]:
    from nats.errors import Error

    return (Error, OSError, TimeoutError, ValueError)


def _new_client(*, requires_tls: bool) -> Client:
    from nats.aio.client import Client
    from nats.errors import SecureConnRequiredError

    class TlsClient(Client):
        """Sends no credentials unless the server begins TLS, for which the library only hopes."""

        async def _process_info(
            self, info: dict[str, Any], initial_connection: bool = False
        ) -> None:
            if not info.get("tls_required"):
                raise SecureConnRequiredError
            await super()._process_info(info, initial_connection)

    return TlsClient() if requires_tls else Client()


async def _close(client: Client) -> None:
    """Close a connection; the library waits for ever for one whose TLS failed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await client.close()


async def _ignore(_error: Exception) -> None:
    """Leave an error to the request that fails because of it."""


def _connect_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the library.

    Raises:
        SinkError: A setting is not known, or a file cannot be read.
    """
    names = {"user": "user", "password": "password", "token": "token"}
    options: dict[str, Any] = {
        "allow_reconnect": False,  # each request connects anew if it must
        "connect_timeout": _TIMEOUT,
        "max_reconnect_attempts": 1,
        "error_cb": _ignore,
        "name": "leaseway-audit",
    }
    options |= {names[name]: text for name, text in settings.items() if name in names}
    if unknown := sorted(settings.keys() - names.keys() - {"ca"}):
        raise SinkError(f"Unknown settings: LEASEWAY_AUDIT_NATS_{unknown[0].upper()}.")
    if "ca" in settings:
        try:
            options["tls"] = ssl.create_default_context(cafile=settings["ca"])
        except OSError as error:
            raise SinkError(
                f"The file of LEASEWAY_AUDIT_NATS_CA cannot be used ({type(error).__name__})."
            ) from None
    return options
