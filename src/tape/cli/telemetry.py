"""Logs and metrics of commands that run until they are stopped."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from tape.base.url_mask import MaskingFormatter
from tape.errors import InvalidInput

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from tape.base.telemetry.health_server import HealthServer

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def set_logging(level: str) -> None:
    """Log to standard error, from this level on."""
    if level.upper() not in logging.getLevelNamesMapping():
        raise InvalidInput(f"--log-level {level!r} must be debug, info, warning or error.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(MaskingFormatter(LOG_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def serve_metrics(registry: CollectorRegistry, listen: str, **health: Any) -> HealthServer:
    """Serve the metrics of a registry on `host:port`, and `/livez` and `/readyz`; `health` is for HealthServer."""
    from tape.base.telemetry.health_server import HealthServer

    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        raise InvalidInput(f"--metrics-listen {listen!r} must look like 127.0.0.1:9464.")
    return HealthServer(registry, host.strip("[]") or "127.0.0.1", int(port), **health)
