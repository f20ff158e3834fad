import pytest

from agentmem.rpcs import RPCS, Rpc, rpc_of, rpcs_of
from agentmem.v1 import options_pb2, types_pb2


def test_every_rpc_has_a_request_type_of_its_own() -> None:
    services = {rpc.method.containing_service.full_name: rpc.method.containing_service for rpc in RPCS.values()}
    assert len(services) == 6
    assert len(RPCS) == sum(len(rpcs_of(service)) for service in services.values())
    assert all(rpc_of(rpc.request()) is rpc for rpc in RPCS.values())


@pytest.mark.parametrize("rpc", RPCS.values(), ids=lambda rpc: rpc.path)
def test_options_name_what_the_request_has(rpc: Rpc) -> None:
    fields, options = rpc.method.input_type.fields_by_name, rpc.options
    if options.place == options_pb2.PLACE_AGENT:
        assert fields["key"].message_type is types_pb2.AgentKey.DESCRIPTOR
    if options.named or options.turn:
        assert "request_id" in fields
    assert not (options.admin and (options.place or options.nodes)), "nodes do not call for admins"
