"""The client's list of RPCs is that of the proto."""

from __future__ import annotations

from google.protobuf.message_factory import GetMessageClass

from tape.client import rpcs
from tape.client.rpcs import BidiStreamRpc, Rpc, ServerStreamRpc, UnaryRpc
from tape.proto import tape_pb2 as pb


def test_every_rpc_of_the_proto_is_listed_with_its_kind_and_its_messages() -> None:
    listed = {rpc.name: rpc for rpc in vars(rpcs).values() if isinstance(rpc, Rpc)}
    methods = pb.DESCRIPTOR.services_by_name["Tape"].methods
    assert set(listed) == {method.name for method in methods}
    for method in methods:
        rpc = listed[method.name]
        kind = BidiStreamRpc if method.client_streaming else ServerStreamRpc if method.server_streaming else UnaryRpc
        assert type(rpc) is kind
        assert rpc.request is GetMessageClass(method.input_type)
        assert rpc.response is GetMessageClass(method.output_type)
