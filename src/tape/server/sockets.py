"""Sockets that a process listens on."""

from __future__ import annotations

import socket

from tape.errors import InvalidConfig


def bind(name: str, host: str, port: int) -> socket.socket:
    """A socket bound to an address; an error names the option that set the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        flag = name.replace("_", "-")
        raise InvalidConfig(
            f"Cannot listen on {join(host, port)} ({error.strerror}). Choose another address with --{flag}."
        ) from error
    return listening


def join(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
