"""Traces by OpenTelemetry's own environment variables; it is imported only if they ask for traces.

`OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) sends traces to a collector, and
`OTEL_TRACES_EXPORTER` names the exporters: `otlp`, `console`, `none`, or any other that is installed. The exporters,
the sampler and the batches have their own variables, which the SDK reads.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateroom.server.spans import Tracing

logger = logging.getLogger(__name__)

EXPORTERS = "opentelemetry_traces_exporter"
"""The entry-point group in which exporters register."""

PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""The exporter that `otlp` means, by protocol."""


def configure() -> Tracing | None:
    """Set up traces for this process, if the variables ask for them and the exporters are installed."""
    exporters = [make for make in map(_exporter, _wanted()) if make is not None]
    if not exporters:
        return None
    from stateroom.server.spans import start_tracing  # noqa: PLC0415 - slow to import, and an extra

    return start_tracing([make() for make in exporters])


def _wanted() -> list[str]:
    """The names of the exporters that the variables ask for."""
    if _variable("OTEL_SDK_DISABLED").lower() == "true":
        return []
    endpoint = _variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or _variable("OTEL_EXPORTER_OTLP_ENDPOINT")
    names = _variable("OTEL_TRACES_EXPORTER") or ("otlp" if endpoint else "none")
    return [name.strip() for name in names.split(",") if name.strip() not in ("", "none")]


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()


def _exporter(name: str) -> Any:
    """The exporter's class; None, with a warning, if none is installed."""
    if name == "otlp":
        protocol = _variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or _variable("OTEL_EXPORTER_OTLP_PROTOCOL")
        name = PROTOCOLS.get(protocol or "http/protobuf", protocol)
    for point in entry_points(group=EXPORTERS, name=name):
        return point.load()
    logger.warning(
        "no traces: unknown exporter %r; installed: %s; "
        "pip install 'stateroom[tracing]' adds console, and otlp by http/protobuf",
        name,
        ", ".join(sorted(entry_points(group=EXPORTERS).names)) or "none",
    )
    return None
