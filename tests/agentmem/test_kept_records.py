"""Kept records of gRPC's log hold none of its objects (conftest.py)."""

import gc

import grpc
import pytest


async def test_a_server_that_is_logged_while_it_dies_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "grpc")  # a test that configures logs raises it
    server = grpc.aio.server()  # never started, as where a port is taken
    del server
    gc.collect()
    [record] = [record for record in caplog.records if "__dealloc__" in record.msg]
    assert record.name == "grpc._cython.cygrpc"
    assert "AioServer" in record.getMessage()
    assert not record.args, "freed memory"
