import socket
from pathlib import Path

from agentmem.process.sockets import listens


def test_server_listens_until_it_is_gone(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/s"
    assert not listens(target)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/s")
        assert not listens(target)
        server.listen()
        assert listens(target)
    assert not listens(target), "its socket is left"
    assert not listens(f"unix:/{'x' * 200}")
