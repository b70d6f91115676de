"""Which addresses may be connected to. The check is made on the address that the connection goes to."""

from __future__ import annotations

import ipaddress
import socket

from tape.errors import RefusedAddress

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet, also by what it stands for."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        embedded = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if embedded is None and ip in _NAT64:
            embedded = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if embedded is not None:
            return is_public(str(embedded))
    return ip.is_global and not ip.is_multicast


def connect(host: str, port: int, timeout: float | None, *, allow_private: bool) -> socket.socket:
    """A connection to a host. A name is resolved once, and only to an address that was checked is connected."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    allowed = [each for each in found if allow_private or is_public(str(each[4][0]))]
    if not allowed:
        addresses = ", ".join(sorted({str(each[4][0]) for each in found}))
        raise RefusedAddress(
            f"{host} is {addresses}, which is not an address of the public internet. A receiver of your own network"
            " needs allow_private=True (tape relay: --allow-private)."
        )
    error: OSError | None = None
    for family, kind, protocol, _, address in allowed:
        made = socket.socket(family, kind, protocol)
        try:
            if timeout is not None:
                made.settimeout(timeout)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.connect(address)
            return made
        except OSError as raised:
            made.close()
            error = raised
    assert error is not None
    raise error
