"""Exporters from the standard `OTEL_*` variables, for all signals.

See design.md#traces-metrics-and-logs.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from opentelemetry import trace

from leaseway.telemetry.otlp.outages import OutageFilter
from leaseway.telemetry.otlp.variables import OtlpVariables
from leaseway.wire.channels.endpoint import NO_WEB_PROXY, is_loopback_host
from leaseway.wire.secrets.redaction import hide
from leaseway.wire.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from leaseway.telemetry.otlp.http_settings import HttpSettings

Signal = Literal["TRACES", "METRICS", "LOGS"]
GrpcOptions = Mapping[str, Any]
"""Arguments of an exporter over gRPC."""
_Exporter = TypeVar("_Exporter")

_logger = logging.getLogger(__name__)
_PROPAGATORS: Final = "OTEL_PROPAGATORS"
_PROVIDER: Final = "OTEL_PYTHON_TRACER_PROVIDER"
_GRPC_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.grpc.exporter"
_outages: Final = OutageFilter()


def make_exporters(
    signal: Signal,
    *,
    console: Callable[[], _Exporter],
    otlp: Callable[[GrpcOptions], _Exporter],
    otlp_http: Callable[[HttpSettings], _Exporter],
    alternative: str = "",
) -> list[_Exporter]:
    """Return the exporters that the standard variables name, and log unusable ones.

    `OTEL_{signal}_EXPORTER` names them (`otlp`, `console`, `none`); unset means `otlp` if an
    `OTEL_EXPORTER_OTLP_*ENDPOINT` is set for the signal or for all, else none.
    `OTEL_SDK_DISABLED=true` turns all off.

    Args:
        signal: The kind of telemetry.
        console: Makes the exporter that writes to stderr.
        otlp: Makes the OTLP exporter over gRPC with these arguments.
        otlp_http: Makes the one over HTTP.
        alternative: Other ways to export, for the message about an unknown exporter.
    """
    made: list[_Exporter] = []
    for name in _exporter_names(signal):
        if name not in ("console", "otlp"):
            _logger.warning(
                f"OTEL_{signal}_EXPORTER names an exporter that Leaseway does not have; use otlp, "
                f"console or none{alternative}.",
                extra={"exporter": name},
            )
            continue
        with logged_if_unusable(signal):
            exporter = console() if name == "console" else _otlp(signal, otlp, otlp_http)
            if exporter is not None:
                made.append(exporter)
    return made


@contextmanager
def logged_if_unusable(signal: Signal) -> Iterator[None]:
    """Log that a signal is not exported if a block cannot use its library or the variables.

    The library raises errors of many classes for values of `OTEL_*` that it cannot read.
    """
    try:
        yield
    except ImportError:
        _logger.warning(
            f"{signal.capitalize()} are not exported: install leaseway[serving], which brings the "
            "OTLP exporter."
        )
    except Exception as error:  # noqa: BLE001 - telemetry never stops a process
        _logger.warning(
            f"{signal.capitalize()} are not exported, because a variable OTEL_* cannot be used: "
            f"{type(error).__name__}: {error}"
        )


def ignore_missing_plugins() -> None:
    """Let OpenTelemetry be used whatever plugins its variables name.

    The import of `opentelemetry.propagate`, which the MCP package does, fails if a propagator is
    not installed, and so does each span if the provider is not.
    """
    named = os.environ.get(_PROPAGATORS)
    if named is not None:
        try:
            importlib.import_module("opentelemetry.propagate")
        except Exception as error:  # noqa: BLE001 - telemetry never stops a process
            _logger.warning(
                f"{_PROPAGATORS} is ignored, and traces are continued by W3C trace context: {error}"
            )
            del os.environ[_PROPAGATORS]
            try:
                importlib.import_module("opentelemetry.propagate")
            finally:
                os.environ[_PROPAGATORS] = named  # servers inherit it
    if _PROVIDER in os.environ:
        try:
            trace.get_tracer_provider()
        except Exception:  # noqa: BLE001 - telemetry never stops a process
            _logger.warning(f"{_PROVIDER} is ignored: what it names is not installed.")
            del os.environ[_PROVIDER]


def _exporter_names(signal: Signal) -> list[str]:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    value = os.environ.get(f"OTEL_{signal}_EXPORTER") or (
        "otlp" if _variables(signal).value("ENDPOINT") else "none"
    )
    names = [name.strip().lower() for name in value.split(",")]
    return [name for name in names if name not in ("", "none")]


def _variables(signal: Signal) -> OtlpVariables:
    return OtlpVariables(signal.lower(), os.environ)


def _otlp(
    signal: Signal,
    by_grpc: Callable[[GrpcOptions], _Exporter],
    by_http: Callable[[HttpSettings], _Exporter],
) -> _Exporter | None:
    """Make the exporter for the protocol that the variables name; log an unknown one.

    Raises:
        ValueError: A variable cannot be used.
    """
    named = _variables(signal).value("PROTOCOL")
    match (named or "grpc").lower():
        case "grpc":
            if not named:
                _warn_of_http_port(signal)
            logging.getLogger(_GRPC_EXPORTER).addFilter(_outages)
            return by_grpc(_grpc_options(signal))
        case "http/protobuf":
            from leaseway.telemetry.otlp.http_settings import http_settings

            return by_http(http_settings(signal.lower(), os.environ))
    _logger.warning(
        f"{signal.capitalize()} are not exported: Leaseway sends OTLP as grpc or http/protobuf. "
        "Set OTEL_EXPORTER_OTLP_PROTOCOL to that of the collector's port.",
        extra={"protocol": named},
    )
    return None


def _warn_of_http_port(signal: Signal) -> None:
    if urlsplit(_variables(signal).value("ENDPOINT")).netloc.endswith(":4318"):
        _logger.warning(
            f"{signal.capitalize()} are sent by OTLP over grpc to port 4318, which is usually "
            "that of OTLP over HTTP: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or grpc."
        )


def _grpc_options(signal: Signal) -> GrpcOptions:
    import grpc

    variables = _variables(signal)
    endpoint = variables.value("ENDPOINT")
    host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or "localhost"
    options: dict[str, Any] = {"channel_options": NO_WEB_PROXY if is_loopback_host(host) else ()}
    if variables.value("COMPRESSION").lower() == "none":  # which the exporters themselves refuse
        options["compression"] = grpc.Compression.NoCompression
    # The exporters log entries that they cannot read.
    entries = variables.value("HEADERS").split(",")
    hide([entry.partition("=")[2] or entry for entry in entries], f"headers of {signal}")
    return options


def describe_process(service_name: str, instance: str = "") -> dict[str, str]:
    """Return the attributes of a process, by their OpenTelemetry names.

    `OTEL_SERVICE_NAME` overrides the argument.

    Args:
        service_name: Such as `leaseway-worker`.
        instance: Such as the worker's id.
    """
    attributes = {
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or service_name,
        "service.version": PACKAGE_VERSION,
        "service.instance.id": instance,
    }
    return {name: value for name, value in attributes.items() if value}


def otel_resource(attributes: Mapping[str, str]) -> Resource:
    """Return the resource of a process; `OTEL_RESOURCE_ATTRIBUTES` overrides attributes."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    return Resource.create(dict(attributes)).merge(OTELResourceDetector().detect())
