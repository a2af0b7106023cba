"""Posts encoded OTLP requests, again while the collector is away for a moment.

It blocks and belongs in a thread of an exporter, never on an event loop. A process sends to one
collector, so one kept connection serves a signal. A loopback collector is reached without a proxy,
others by `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`.
"""

from __future__ import annotations

import gzip
import http.client
import logging
import threading
import time
from base64 import b64encode
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from leaseway.telemetry.otlp.http_settings import HttpSettings
from leaseway.telemetry.otlp.outages import OUTAGE_INTERVAL
from leaseway.wire import bounds
from leaseway.wire.channels.fetching import proxy_for
from leaseway.wire.secrets.redaction import hide, redact
from leaseway.wire.timing.backoff import RETRY
from leaseway.wire.timing.retry_after import retry_delay
from leaseway.wire.version import PACKAGE_VERSION

_logger = logging.getLogger(__name__)

_TRANSIENT: Final = frozenset((429, 502, 503, 504))
"""The statuses after which the specification of OTLP lets a client try again."""
_MAX_ANSWER: Final = 64 * bounds.KIB
_MAX_DETAIL: Final = 200


@dataclass(frozen=True)
class _Failure:
    """Why a request was not accepted.

    Attributes:
        reason: A clause for the log.
        is_transient: Whether the same request may be accepted later.
        pause: Seconds that the collector wants to be left alone, or None.
    """

    reason: str
    is_transient: bool
    pause: float | None = None


class HttpSender:
    """Sends the requests of one signal.

    Args:
        settings: Where and how. The values of its headers are redacted in all logs.

    Raises:
        ValueError: The proxy that the environment names cannot be used.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._hidden = hide(
            [*settings.headers.values(), *" ".join(settings.headers.values()).split()]
        )
        self._proxy = _proxy(settings.url)
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._logged = ("", float("-inf"))

    def send(self, body: bytes) -> bytes | None:
        """Post a request and return the answer's body; None if it was lost, which is logged.

        Blocks for at most the timeout of the settings.

        Args:
            body: A serialized `Export...ServiceRequest`.
        """
        deadline = time.monotonic() + self._settings.timeout
        content = gzip.compress(body, 6) if self._settings.is_compressed else body
        attempt = 0
        with self._lock:
            while True:
                answer = self._post(content, deadline)
                if not isinstance(answer, _Failure):
                    self._log_recovery()
                    return answer
                pause = RETRY.delay(attempt) if answer.pause is None else answer.pause
                attempt += 1
                is_last = not answer.is_transient or time.monotonic() + pause >= deadline
                if is_last or self._ending.wait(pause):
                    self._log_loss(answer.reason)
                    if self._ending.is_set():
                        self._disconnect()
                    return None

    def close(self) -> None:
        """Have a request that waits for its next try give up. Does not wait for one under way."""
        self._ending.set()
        if self._lock.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._lock.release()

    def _post(self, content: bytes, deadline: float) -> bytes | _Failure:
        """Try once; twice if the kept connection turns out to be closed."""
        was_kept = self._connection is not None
        try:
            return self._exchange(content, deadline)
        except (OSError, http.client.HTTPException) as error:
            self._disconnect()
            if was_kept and not isinstance(error, TimeoutError):
                return self._post(content, deadline)
            return _Failure(f"{str(error) or type(error).__name__}", is_transient=True)

    def _exchange(self, content: bytes, deadline: float) -> bytes | _Failure:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        connection = self._connection or self._connect(left)
        if connection.sock is not None:
            connection.sock.settimeout(left)
        connection.request("POST", self._target(), body=content, headers=self._headers())
        answer = connection.getresponse()
        body = answer.read(_MAX_ANSWER + 1)
        if len(body) > _MAX_ANSWER or answer.will_close:
            self._disconnect()
        if 200 <= answer.status < 300:
            return body[:_MAX_ANSWER]
        return _Failure(
            _reason(answer.status, answer.getheader("Content-Type", ""), body),
            is_transient=answer.status in _TRANSIENT,
            pause=retry_delay({name.lower(): value for name, value in answer.getheaders()}),
        )

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        url, proxy = self._settings.url, self._proxy
        host, port = (url if proxy is None else proxy).hostname, (proxy or url).port
        assert host is not None  # settings and proxy were checked
        if url.scheme == "http":
            self._connection = http.client.HTTPConnection(host, port or 80, timeout=timeout)
            return self._connection
        default = 443 if proxy is None else 80
        connection = http.client.HTTPSConnection(
            host, port or default, timeout=timeout, context=self._settings.tls
        )
        if proxy is not None:
            assert url.hostname is not None
            connection.set_tunnel(url.hostname, url.port or 443, _proxy_headers(proxy))
        self._connection = connection
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _target(self) -> str:
        url = self._settings.url
        if self._proxy is not None and url.scheme == "http":
            return url.geturl()
        return url._replace(scheme="", netloc="").geturl()

    def _headers(self) -> dict[str, str]:
        url = self._settings.url
        headers = {
            "user-agent": f"OTel-OTLP-Exporter-Python/{PACKAGE_VERSION} leaseway",
            **self._settings.headers,
            "content-type": "application/x-protobuf",
        }
        if self._settings.is_compressed:
            headers["content-encoding"] = "gzip"
        if self._proxy is not None and url.scheme == "http":
            headers |= _proxy_headers(self._proxy)
            headers["host"] = url.netloc
        return headers

    def _log_loss(self, reason: str) -> None:
        now = time.monotonic()
        if self._logged[0] == reason and now - self._logged[1] < OUTAGE_INTERVAL:
            return
        self._logged = (reason, now)
        url = self._settings.url
        _logger.warning(
            redact(
                f"A batch of {self._settings.signal} was not exported to "
                f"{url.scheme}://{url.netloc}{url.path} and is lost: {reason}. Check the collector "
                "and OTEL_EXPORTER_OTLP_*."
            )
        )

    def _log_recovery(self) -> None:
        if self._logged[0]:
            _logger.info(f"{self._settings.signal.capitalize()} are exported again.")
            self._logged = ("", float("-inf"))


def _reason(status: int, content_type: str, body: bytes) -> str:
    """Return why a request was refused, with what the collector says about it."""
    said = ""
    if content_type.partition(";")[0].strip().lower() == "application/x-protobuf":
        said = _status_message(body)
    elif content_type.startswith(("text/plain", "application/json")):
        said = body[:_MAX_DETAIL].decode(errors="replace")
    shown = "".join(char if char.isprintable() else " " for char in said[:_MAX_DETAIL]).strip()
    reason = f"it answers {status}"
    if 300 <= status < 400:
        reason += ", and redirects are not followed"
    return f"{reason} ({shown})" if shown else reason


def _status_message(body: bytes) -> str:
    from google.protobuf.message import DecodeError
    from google.rpc.status_pb2 import Status

    try:
        return str(Status.FromString(body).message)
    except DecodeError:
        return ""


def _proxy(url: SplitResult) -> SplitResult | None:
    text = proxy_for(url.scheme, url.hostname or "")
    if text is None:
        return None
    proxy = urlsplit(text)
    _ = proxy.port  # raises ValueError if it is none
    if proxy.scheme != "http" or not proxy.hostname:
        raise ValueError(
            f"the proxy for {url.scheme} has no http address, which alone can be used; name the "
            "collector in NO_PROXY if it needs none."
        )
    return proxy


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"proxy-authorization": f"Basic {b64encode(pair.encode()).decode()}"}
