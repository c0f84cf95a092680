"""Drives Berth with grpcio and server reflection alone: no generated code, no proto files.

Usage: reflection_client.py HOST:PORT API-KEY
"""
import sys
import time

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

target, key = sys.argv[1:3]
metadata = (("authorization", f"Bearer {key}"), ("x-tenant-id", "default"))
channel = grpc.insecure_channel(target)
database = ProtoReflectionDescriptorDatabase(channel)
pool = descriptor_pool.DescriptorPool(database)


def method(full_service, name):
    """A callable for one RPC, built from its descriptor."""
    descriptor = pool.FindServiceByName(full_service).FindMethodByName(name)
    request = message_factory.GetMessageClass(descriptor.input_type)
    response = message_factory.GetMessageClass(descriptor.output_type)
    kind = channel.unary_stream if descriptor.server_streaming else channel.unary_unary
    stub = kind(f"/{full_service}/{name}", request.SerializeToString, response.FromString)
    return lambda timeout=60, **fields: stub(request(**fields), metadata=metadata, timeout=timeout)


def main():
    services = set(database.get_services())
    runs, sessions = "berth.lifecycle.v1.RunService", "berth.sessions.v1.SessionService"
    assert {runs, sessions} <= services, services
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING, health

    run = method(runs, "CreateRun")(prompt="say hello", sandbox_provider="local", request_id="python-client-1")
    again = method(runs, "CreateRun")(prompt="say hello", sandbox_provider="local", request_id="python-client-1")
    assert run.run_id == again.run_id, (run.run_id, again.run_id)

    states = run.DESCRIPTOR.enum_types_by_name["State"].values_by_number
    seen = [states[update.state].name for update in method(runs, "WatchRun")(run_id=run.run_id)]
    assert seen[-1] == "COMPLETED", seen

    numbers, kinds = [], set()
    for item in method(sessions, "StreamEvents")(run_id=run.run_id):
        if item.WhichOneof("item") == "event":
            numbers.append(item.event.sequence)
            kinds.add(item.event.WhichOneof("payload"))
    assert numbers == list(range(1, len(numbers) + 1)), numbers
    assert {"user_message", "tool_call", "tool_result", "turn_ended", "run_state_changed"} <= kinds, kinds

    method(runs, "DeleteRun")(run_id=run.run_id)
    deadline = time.monotonic() + 30
    while True:
        try:
            method(runs, "GetRun")(run_id=run.run_id)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.NOT_FOUND, error
            break
        assert time.monotonic() < deadline, "the run was not deleted in time"
    receipt = method(runs, "GetReceipt")(run_id=run.run_id)
    assert receipt.complete and len(receipt.receipts) == 1, receipt
    print("states", " ".join(seen), "| events", len(numbers), "| receipt", receipt.receipts[0].how)


main()
