"""What the standard `OTEL_*` variables say of traces and metrics alike (DESIGN §11)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from leaseway.wire.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

Signal = Literal["TRACES", "METRICS", "LOGS"]
_Exporter = TypeVar("_Exporter")

_logger = logging.getLogger(__name__)
_OTLP: Final = "OTEL_EXPORTER_OTLP"


def make_exporters(
    signal: Signal,
    *,
    console: Callable[[], _Exporter],
    otlp: Callable[[], _Exporter],
    instead: str = "",
) -> list[_Exporter]:
    """Return the exporters that the standard variables ask for; none without them.

    `OTEL_{signal}_EXPORTER` names them (`otlp`, `console`, `none`); unset means `otlp` where an
    `OTEL_EXPORTER_OTLP_*ENDPOINT` is set for the signal or for all; `OTEL_SDK_DISABLED=true` wins.
    What cannot be used is said in a log line.

    Args:
        signal: What is exported.
        console: Makes the one that writes to stderr.
        otlp: Makes the one that sends; an ImportError means that its library is not installed.
        instead: What else there is, said of an exporter that there is not.
    """
    makers = {"console": console, "otlp": otlp}
    made: list[_Exporter] = []
    for name in _wanted(signal):
        if name not in makers:
            _logger.warning(
                f"OTEL_{signal}_EXPORTER names an exporter that Leaseway does not have; use otlp, "
                f"console or none{instead}.",
                extra={"exporter": name},
            )
        elif name != "otlp" or _otlp_is_possible(signal):
            try:
                made.append(makers[name]())
            except ImportError:
                _logger.warning(
                    f"{signal.capitalize()} are not exported: install leaseway[serving], which "
                    "brings the OTLP exporter."
                )
    return made


def _wanted(signal: Signal) -> list[str]:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    endpoint = os.environ.get(f"{_OTLP}_{signal}_ENDPOINT") or os.environ.get(f"{_OTLP}_ENDPOINT")
    asked = os.environ.get(f"OTEL_{signal}_EXPORTER") or ("otlp" if endpoint else "none")
    names = [name.strip().lower() for name in asked.split(",")]
    return [name for name in names if name not in ("", "none")]


def _otlp_is_possible(signal: Signal) -> bool:
    """Return whether the protocol that is asked for is the one that there is; if not, log it."""
    protocol = os.environ.get(f"{_OTLP}_{signal}_PROTOCOL") or os.environ.get(
        f"{_OTLP}_PROTOCOL", "grpc"
    )
    if protocol == "grpc":
        return True
    _logger.warning(
        f"{signal.capitalize()} are not exported: Leaseway sends OTLP over grpc only. Point the "
        "endpoint at a collector's grpc port and set OTEL_EXPORTER_OTLP_PROTOCOL=grpc.",
        extra={"protocol": protocol},
    )
    return False


def describe_process(service_name: str, instance: str = "") -> dict[str, str]:
    """Return what a process says of itself, in OpenTelemetry's names.

    `OTEL_SERVICE_NAME` wins over the argument.

    Args:
        service_name: Such as `leaseway-worker`.
        instance: Such as the worker's id.
    """
    named = {
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or service_name,
        "service.version": PACKAGE_VERSION,
        "service.instance.id": instance,
    }
    return {name: value for name, value in named.items() if value}


def otel_resource(described: Mapping[str, str]) -> Resource:
    """Return a description as an OpenTelemetry resource; `OTEL_RESOURCE_ATTRIBUTES` win."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    return Resource.create(dict(described)).merge(OTELResourceDetector().detect())
