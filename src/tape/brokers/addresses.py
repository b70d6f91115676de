"""Addresses of brokers as a URL with a scheme: host, port, login and encryption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from tape.brokers.settings import SourceSettings


# The schemes of a source's `url`, and their default ports. The encrypted one ends in `s`.
PORTS: dict[str, dict[str, int]] = {
    "mqtt": {"mqtt": 1883, "mqtts": 8883},
    "amqp": {"amqp": 5672, "amqps": 5671},
}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A parsed address. `shown` is for messages: it has no password."""

    host: str
    port: int
    is_encrypted: bool
    user: str = ""
    password: str = ""

    @property
    def shown(self) -> str:
        """`host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_problem(url: str, ports: dict[str, int]) -> str:
    """What is wrong with an address whose scheme is one of `ports`; empty if nothing is."""
    schemes = " or ".join(f"{scheme}://" for scheme in ports)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"must be {schemes} with a host and a port"
    if parts.scheme not in ports or not parts.hostname or port == 0:
        return f"must begin with {schemes} and a host, for example {next(iter(ports))}://broker.example.com"
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return "must end after the host and the port"
    return ""


def broker_address(settings: SourceSettings) -> BrokerAddress:
    """The setting `url` of a source.

    A login in the address is used where there is no `user`. Raises SourceMisconfigured.
    """
    url, ports = settings.text("url"), PORTS[settings.source]
    if not url:
        raise settings.wrong("requires 'url', or an 'auth' credential with a 'url'")
    if problem := address_problem(url, ports):
        raise settings.wrong(f"'url' {problem}")
    parts = urlsplit(url)
    return BrokerAddress(
        parts.hostname or "",
        parts.port or ports[parts.scheme],
        parts.scheme.endswith("s"),
        settings.text("user") or unquote(parts.username or ""),
        settings.text("password") if settings.text("user") else unquote(parts.password or ""),
    )
