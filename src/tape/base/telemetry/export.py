"""Sending spans to a collector, as OpenTelemetry's standard environment variables say."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for spans to be exported over OTLP."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").lower()
    if exporter:
        return "otlp" in exporter.split(",")
    return any(environ.get(name) for name in _ENDPOINTS)


def start_export(service: str) -> bool:
    """Export the spans of this process if the environment asks for it; whether it does.

    `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over `service`. A program that has set up OpenTelemetry
    itself is left alone. Without the SDK a line in the log names the extra to install.
    """
    if not is_wanted():
        return False
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter()
    except ImportError:
        log.warning(
            "spans are not exported: OpenTelemetry's SDK is not installed. Install it: pip install 'tape[otel]'"
        )
        return False
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return True
    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    atexit.register(provider.shutdown)
    return True


def _exporter() -> Any:
    protocol = os.environ.get(
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    )
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
