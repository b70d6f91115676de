"""Hosts that a secret may be sent to: as `host:port`, from the addresses in settings and in secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tape.errors import InvalidInput

# Fields of a document or of a secret that hold the address of a connection.
ADDRESS_FIELDS = ("url", "nats_url", "servers", "brokers", "bootstrap_servers", "endpoint", "endpoint_url")
# Properties of librdkafka that hold the addresses of brokers.
BROKER_PROPERTIES = ("bootstrap.servers", "metadata.broker.list")
# No binding covers it.
UNPARSED = "(invalid address)"

_ADDRESS = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+_.-]*)://)?(?:[^@/?#\s]*@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_-][A-Za-z0-9._-]*)(?::(?P<port>[0-9]{1,5}))?/?"
)
_PORTS = {
    "nats": "4222",
    "tls": "4222",
    "ws": "80",
    "wss": "443",
    "http": "80",
    "https": "443",
    "mqtt": "1883",
    "mqtts": "8883",
    "amqp": "5672",
    "amqps": "5671",
}
_FIELD_PORTS = {
    "url": "4222",
    "nats_url": "4222",
    "servers": "4222",
    "brokers": "9092",
    "bootstrap_servers": "9092",
    **dict.fromkeys(BROKER_PROPERTIES, "9092"),
}


def check_host(text: str) -> str:
    """The host of a binding, `host` or `host:port`, in lower case. Raises InvalidInput."""
    match = _ADDRESS.fullmatch(text)
    if match is None or match["scheme"] or "@" in text or "/" in text:
        raise InvalidInput(f"--host {text!r} must be a host or host:port, for example nats.example.com:4222.")
    return _joined(match["host"], match["port"] or "")


def hosts_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The hosts in the address fields of settings, sorted; UNPARSED for an address that cannot be parsed."""
    options = settings.get("options")
    found = {name: settings.get(name) for name in ADDRESS_FIELDS}
    if isinstance(options, Mapping):
        found |= {name: value for name, value in options.items() if name in BROKER_PROPERTIES or "://" in str(value)}
    return tuple(sorted({_host(name, text) for name, value in found.items() for text in _texts(value)}))


def has_address(settings: Any) -> bool:
    """Whether settings or a secret name an address."""
    return isinstance(settings, Mapping) and bool(hosts_of(settings))


def without_addresses(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without their addresses, also without those in `options`."""
    kept = {name: value for name, value in settings.items() if name not in ADDRESS_FIELDS}
    if isinstance(options := kept.get("options"), Mapping):
        kept["options"] = {
            name: value for name, value in options.items() if name not in BROKER_PROPERTIES and "://" not in str(value)
        }
    return kept


def is_bound(host: str, bindings: Iterable[str]) -> bool:
    """Whether one of the bindings covers a host; a binding without a port covers every port of its host."""
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
    return any(host == binding or name == binding for binding in bindings) and _ADDRESS.fullmatch(host) is not None


def _texts(value: Any) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []
    return [text for part in parts if (text := str(part).strip())]


def _host(field: str, address: str) -> str:
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return UNPARSED  # the text itself may hold a password
    scheme = (match["scheme"] or "").lower()
    port = match["port"] or _PORTS.get(scheme) or _FIELD_PORTS.get(field, "443")
    return _joined(match["host"], port)


def _joined(host: str, port: str) -> str:
    return host.lower().rstrip(".") + (f":{int(port)}" if port else "")
