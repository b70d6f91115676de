"""How much of what was written to a socket its peer has taken.

The event loop hears of a reader's progress only when a third of the kernel's send buffer is free again, and that buffer
grows to megabytes: a slow reader that takes data all the time looks idle for minutes. The kernel itself counts each
acknowledged byte.
"""

from __future__ import annotations

import asyncio
import socket
import struct

_TCP_INFO = getattr(socket, "TCP_INFO", None)
# `tcpi_bytes_acked` of Linux' struct tcp_info, since 4.1.
_BYTES_ACKED = struct.Struct("@Q")
_OFFSET = 120


def bytes_taken(transport: asyncio.Transport) -> int:
    """The bytes that the peer has acknowledged. Where the kernel does not count them, a number that changes whenever
    the event loop could write some.
    """
    peer = transport.get_extra_info("socket")
    if _TCP_INFO is not None and peer is not None:
        try:
            info = peer.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _OFFSET + _BYTES_ACKED.size)
        except OSError:  # closed meanwhile
            info = b""
        if len(info) == _OFFSET + _BYTES_ACKED.size:
            return int(_BYTES_ACKED.unpack_from(info, _OFFSET)[0])
    return -transport.get_write_buffer_size()
