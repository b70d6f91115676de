"""Which addresses outgoing connections may go to. The check is made on the address that the connection goes to."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tape.base.allow_list import AllowList, IpAddress, normalize_host
from tape.base.config import load_http_allow
from tape.errors import AddressNotAllowed

# What getaddrinfo answers: family, type, protocol, canonical name, socket address.
AddressInfo = tuple[Any, Any, int, str, Any]

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_IPV4_RULES: tuple[tuple[_Network, str], ...] = tuple(
    (ipaddress.ip_network(network), rule)
    for network, rule in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "cloud metadata"),  # Azure's, the only one outside of a reserved range
        ("169.254.169.254/32", "cloud metadata"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_IPV6_RULES: tuple[tuple[_Network, str], ...] = tuple(
    (ipaddress.ip_network(network), rule)
    for network, rule in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::/96", "IPv4-compatible"),
        ("64:ff9b:1::/48", "local NAT64"),
        ("fd00:ec2::254/128", "cloud metadata"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
    )
)
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Which addresses a connection may go to: public ones and those of the allow-list, or any.

    Without an allow-list of its own a policy uses the one of the process: TAPE_HTTP_ALLOW, else `http_allow` of
    tape.toml, and what `allowing` adds.
    """

    any_address: bool = False
    allow: AllowList | None = None

    def admit(self, host: str, port: int, found: Sequence[AddressInfo]) -> list[AddressInfo]:
        """The resolved addresses that may be connected to. Raises AddressNotAllowed if there is none."""
        if self.any_address:
            return list(found)
        allow = process_allow_list() if self.allow is None else self.allow
        refused: dict[str, str] = {}
        admitted: list[AddressInfo] = []
        for each in found:
            address = _parse(each[4][0])
            rule = rule_against(address)
            if rule is None or allow.permits(host, port, address):
                admitted.append(each)
            else:
                refused[str(address)] = rule
        if not admitted:
            raise AddressNotAllowed(host, port, refused)
        return admitted

    def needs_proxy(self, host: str, port: int) -> bool:
        """Whether a configured proxy is used for a host: not for one that only the allow-list admits.

        Raises AddressNotAllowed for a host that resolves here to addresses that are not admitted. A name that only the
        proxy can resolve is left to the proxy's own rules.
        """
        try:
            found = _resolve(host, port)
        except OSError:
            return True
        return all(self.any_address or is_public(each[4][0]) for each in self.admit(host, port, found))


PUBLIC_ONLY = AddressPolicy()
"""For addresses that come from a document, a user or data."""

OPERATOR = AddressPolicy(any_address=True)
"""For addresses that the operator configured, such as the one of the Tape server."""


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet, also by the IPv4 address that it stands for."""
    return rule_against(_parse(address)) is None


def rule_against(address: IpAddress) -> str | None:
    """Why an address is not public, for example "loopback"; None if it is."""
    if isinstance(address, ipaddress.IPv4Address):
        return _first_rule(_IPV4_RULES, address)
    embedded = _embedded(address)
    if embedded:
        return next(filter(None, map(rule_against, embedded)), None)
    return _first_rule(_IPV6_RULES, address) or (None if address in _GLOBAL_UNICAST else "reserved")


def process_allow_list() -> AllowList:
    """The allow-list of this process: the environment's, else the file's, and what `allowing` adds."""
    configured = _parse_list(load_http_allow())
    return AllowList(configured.entries + tuple(entry for added in _added for entry in added.entries))


@contextlib.contextmanager
def allowing(text: str) -> Iterator[None]:
    """Add entries to the allow-list of this process for the duration of the block."""
    added = AllowList.parse(text)
    _added.append(added)
    try:
        yield
    finally:
        _added.remove(added)


def connect(host: str, port: int, timeout_s: float | None, policy: AddressPolicy) -> socket.socket:
    """Connect to a host. The name is resolved once, and only an address that was checked is connected to."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    error: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in policy.admit(host, port, _resolve(host, port)):
        made = socket.socket(family, kind, protocol)
        try:
            if deadline is not None:
                made.settimeout(max(deadline - time.monotonic(), 0.001))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.connect(address)
            return made
        except OSError as raised:
            made.close()
            error = raised
    raise error


async def open_connection(
    host: str,
    port: int,
    policy: AddressPolicy,
    *,
    tls: ssl.SSLContext | None = None,
    limit: int = 1 << 16,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a host without blocking the event loop, with the same check as `connect`."""
    loop = asyncio.get_running_loop()
    error: OSError = OSError(f"{host} has no address")
    found = await loop.run_in_executor(None, _resolve, host, port)
    for family, kind, protocol, _, address in policy.admit(host, port, found):
        made = socket.socket(family, kind, protocol)
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(made, address)
            return await asyncio.open_connection(
                sock=made, ssl=tls, server_hostname=host if tls is not None else None, limit=limit
            )
        except OSError as raised:
            made.close()
            error = raised
        except BaseException:
            made.close()
            raise
    raise error


def _resolve(host: str, port: int) -> Sequence[AddressInfo]:
    try:
        return socket.getaddrinfo(normalize_host(host), port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or longer than 63 characters
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is not a host name") from error


def _parse(address: str) -> IpAddress:
    return ipaddress.ip_address(address.partition("%")[0])


def _first_rule(rules: Sequence[tuple[_Network, str]], address: IpAddress) -> str | None:
    return next((rule for network, rule in rules if address in network), None)


def _embedded(address: ipaddress.IPv6Address) -> Sequence[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 address leads to."""
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if address in _NAT64:
        return (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF),)
    return ()


_added: list[AllowList] = []
_parse_list = cache(AllowList.parse)
