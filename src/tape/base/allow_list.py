"""The setting `http_allow`: hosts and networks outside the public internet that outgoing requests may reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from tape.errors import InvalidConfig

HTTP_ALLOW_VARIABLE = "TAPE_HTTP_ALLOW"

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class _Entry:
    """A host name or a network, on one port or, with port 0, on all."""

    host: str
    network: IpNetwork | None
    port: int

    def permits(self, host: str, port: int, address: IpAddress) -> bool:
        if self.port and self.port != port:
            return False
        if self.network is None:
            return self.host == host
        return address.version == self.network.version and address in self.network


@dataclass(frozen=True, slots=True)
class AllowList:
    """Entries of `http_allow`. A name permits the host of that name, a network every address in it."""

    entries: tuple[_Entry, ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllowList:
        """Read `localhost, stock.internal:8080, 10.0.0.0/8, [::1]:9000`. Raises InvalidConfig."""
        return cls(tuple(_parse_entry(part) for part in map(str.strip, text.split(",")) if part))

    def permits(self, host: str, port: int, address: IpAddress) -> bool:
        """Whether a connection to this host, port and address is allowed."""
        name = normalize_host(host)
        forms = tuple(_forms(address))
        return any(entry.permits(name, port, form) for entry in self.entries for form in forms)


def normalize_host(host: str) -> str:
    """A host name in lower case, without the brackets of IPv6 literals and the final dot."""
    return host.strip("[]").rstrip(".").lower()


def _forms(address: IpAddress) -> Iterator[IpAddress]:
    """The address, and the IPv4 address that an IPv4-mapped one stands for."""
    yield address
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        yield address.ipv4_mapped


def _parse_entry(text: str) -> _Entry:
    try:
        return _Entry("", ipaddress.ip_network(text.strip("[]"), strict=False), 0)
    except ValueError:
        host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, "0"
    is_port = port.isdecimal() and port.isascii() and (0 < int(port) < 65_536 if colon else True)
    if not host or not is_port or any(char in host for char in "/@*? ") or (":" in host and not host.startswith("[")):
        raise InvalidConfig(
            f"http_allow has the entry {text!r}; write a host, host:port or a network, separated by commas,"
            " for example: localhost,stock.internal:8080,10.0.0.0/8"
        )
    try:
        return _Entry("", ipaddress.ip_network(host.strip("[]")), int(port))
    except ValueError:
        return _Entry(normalize_host(host), None, int(port))
