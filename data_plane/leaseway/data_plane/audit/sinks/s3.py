"""Objects in an S3-compatible store, by `obstore` (extra `audit-s3`).

Credentials and the endpoint come from `SinkSettings` (`LEASEWAY_AUDIT_AWS_REGION` and so on), or
else `AWS_REGION` and so on, a web identity, or the machine's role. Settings are read again after
each failure: they may have been replaced.
Objects are created only if their name is free, and with a checksum, which buckets with object lock
require.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from leaseway.data_plane.audit.sinks.port import ObjectExists, SinkError, StoredObject
from leaseway.wire.bounds import MIB

if TYPE_CHECKING:
    from obstore.store import S3Store

_TIMEOUT: Final = timedelta(seconds=20)
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_STATUS: Final = re.compile(r"status code: (\d{3})")
"""What the library says of an answer: its type of error does not tell it for lists."""
_CAUSES: Final = {
    "dns error": "the name of the server is not known",
    "InvalidCertificate": "the certificate of the server is not trusted",
    "kind: Timeout": "no answer in time",
    "kind: Connect": "no connection",
    "kind: Request": "the connection ended before an answer",
}
"""What the library says, in its details alone, of a request without an answer."""


class S3Sink:
    """A folder of a bucket.

    Args:
        bucket: The bucket.
        prefix: The folder in it; empty for the whole bucket.
        read_settings: Returns the settings that are for the sink alone.

    Raises:
        SinkError: The library is not installed, or the settings are not valid.
    """

    part_size: Final = 4 * MIB

    def __init__(
        self, bucket: str, prefix: str, read_settings: Callable[[], Mapping[str, str]]
    ) -> None:
        self._bucket, self._prefix = bucket, prefix
        self._address = f"s3://{bucket}/{prefix}".rstrip("/")
        try:
            import obstore  # noqa: F401
        except ImportError:
            raise SinkError(
                f"The audit's sink {self._address} needs the extra: "
                "pip install 'leaseway[audit-s3]'"
            ) from None
        self._read_settings = read_settings
        self._settings = read_settings()
        self._store = self._made(self._settings)
        self._has_failed = False

    def _made(self, settings: Mapping[str, str]) -> S3Store:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        try:
            return S3Store(
                self._bucket,
                config=_aws_settings(settings),  # type: ignore[arg-type]  # obstore checks the names
                prefix=self._prefix or None,
                checksum_algorithm="SHA256",
                client_options={
                    "timeout": _TIMEOUT,
                    "connect_timeout": _CONNECT_TIMEOUT,
                    "allow_http": True,
                },
                retry_config={"max_retries": 0, "retry_timeout": _TIMEOUT},
            )
        except (BaseError, OSError) as error:
            raise self._failed("be opened", error) from None

    async def _opened(self) -> S3Store:
        """Return the store; after a failure with the settings of now."""
        if self._has_failed:
            settings = await asyncio.to_thread(self._read_settings)
            if settings != self._settings:
                self._store = self._made(settings)
                self._settings = settings
            self._has_failed = False
        return self._store

    async def put(self, name: str, content: bytes) -> None:
        from obstore.exceptions import AlreadyExistsError, BaseError

        store = await self._opened()
        try:
            await store.put_async(name, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            raise ObjectExists(f"{self._address} already has {name}.") from None
        except (BaseError, OSError) as error:
            raise self._failed("be written", error) from None

    async def get(self, name: str) -> bytes:
        from obstore.exceptions import BaseError

        store = await self._opened()
        try:
            return bytes(await (await store.get_async(name)).bytes_async())
        except (BaseError, OSError) as error:
            raise self._failed("be read", error) from None

    async def objects(self, below: str = "") -> AsyncIterator[StoredObject]:
        from obstore.exceptions import BaseError

        store = await self._opened()
        try:
            pages: Any = store.list(below or None)
            async for page in pages:
                for meta in page:
                    yield StoredObject(meta["path"], meta["size"])
        except (BaseError, OSError) as error:
            raise self._failed("be listed", error) from None

    async def aclose(self) -> None:
        """Do nothing: the store has no connection that must be closed."""

    def _failed(self, what: str, error: Exception) -> SinkError:
        """Return an error with the kind of failure; what the server sent is not repeated."""
        self._has_failed = True
        text = str(error)
        if status := _STATUS.search(text):
            kind = f"HTTP {status[1]}"
        else:
            other = type(error).__name__.removesuffix("Error")
            kind = next((cause for said, cause in _CAUSES.items() if said in text), other)
        return SinkError(
            f"The audit's sink {self._address} cannot {what} ({kind}). Check the address, the"
            " region and the credentials in LEASEWAY_AUDIT_AWS_*."
        )


def _aws_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings as the library names them."""
    return {f"aws_{name}": text for name, text in settings.items()}
