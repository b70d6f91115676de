"""Connections whose other end is gone are noticed by the system."""

from __future__ import annotations

import socket

from tape.base.keepalive import IDLE_S, USER_TIMEOUT_MS, keep_alive


def test_an_idle_connection_is_probed() -> None:
    with socket.socket() as connection:
        keep_alive(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == IDLE_S
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == USER_TIMEOUT_MS


def test_a_transport_without_a_socket_is_left_alone() -> None:
    keep_alive(None)
