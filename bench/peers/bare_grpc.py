"""A gRPC server that sends messages made beforehand, one an entry: what gRPC itself allows. `PORT ENTRIES`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from bench.load import PREPARED, event, payload_text
from tape.proto import tape_pb2 as pb

SERVICE = "tape.v1.Tape"


async def serve(port: int, entries: int) -> None:
    """Answer GetHead and SubscribeBySubject of Tape, for the client that reads Tape."""
    messages = [
        pb.EventEntry(
            run_id=event(number).run_id,
            seq=number,
            kind="order",
            payload_json=payload_text(number),
            ts_ms=1_700_000_000_000,
            global_seq=number,
            subject=event(number).subject,
            schema_version=1,
            chain=bytes(32),
        ).SerializeToString()
        for number in range(1, PREPARED + 1)
    ]

    async def get_head(request: bytes, context: Any) -> bytes:
        return pb.JournalHead(global_seq=entries).SerializeToString()

    async def subscribe(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(entries):
            yield messages[number % PREPARED]

    server = grpc.aio.server()
    handlers = {
        "GetHead": grpc.unary_unary_rpc_method_handler(get_head),
        "SubscribeBySubject": grpc.unary_stream_rpc_method_handler(subscribe),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
