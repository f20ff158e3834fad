import stat
from pathlib import Path

import pytest

from agentmem import layout
from agentmem.layout import ForeignDirectory, refuse_foreign
from agentmem.process.settings import load
from agentmem.process.sockets import SocketGuard
from cache_service.settings import StoreSettings
from gateway.cli.up.settings import UpSettings, service_arguments
from gateway.settings import GatewaySettings
from inference_service.settings import WorkerSettings


@pytest.mark.parametrize("arguments", [[], ["--data", "/tmp/a"], ["--data", "rel"], ["--run-dir", "~/sockets"]])
def test_processes_meet(arguments: list[str]) -> None:
    told = service_arguments(load(UpSettings, arguments))
    store, worker = load(StoreSettings, told.store), load(WorkerSettings, told.worker)
    assert worker.store_target == store.address
    assert load(GatewaySettings, told.gateway).worker_target == worker.address


def test_single_services_meet_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    store, worker, gateway = load(StoreSettings, []), load(WorkerSettings, []), load(GatewaySettings, [])
    assert worker.store_target == store.address == "unix:/home/ada/.agentmem/run/store.sock"
    assert gateway.worker_target == worker.address == "unix:/home/ada/.agentmem/run/worker.sock"
    assert worker.data_directory == store.data_directory == Path("/home/ada/.agentmem")
    assert [one.metrics[-4:] for one in (gateway, worker, store)] == ["9464", "9465", "9466"]


def test_a_long_data_path_gets_a_run_directory_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for all processes and commands of that data directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/tmp/am-cache")
    long = tmp_path / ("d" * 100)
    told = service_arguments(load(UpSettings, ["--data", str(long)]))
    store, worker = load(StoreSettings, ["--data", f"{tmp_path}/./{long.name}"]), load(WorkerSettings, told.worker)
    assert worker.run_directory.parent == Path("/tmp/am-cache/agentmem/run")
    assert worker.store_target == store.address == load(GatewaySettings, told.gateway).store_target
    assert worker.run_directory != layout.run_directory(tmp_path / ("e" * 100), None)
    assert layout.fits(worker.address.removeprefix("unix:"))
    assert layout.run_directory(long, tmp_path) == tmp_path
    assert layout.run_directory(Path("/srv/a,b"), None).parent == Path("/tmp/am-cache/agentmem/run"), "no path for gRPC"
    monkeypatch.setenv("XDG_CACHE_HOME", f"/tmp/{'c' * 100}")
    assert layout.run_directory(long, None) == long / "run", "which is refused"


def test_that_directory_is_for_its_owner_alone(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(run_dir))
    address = layout.store_socket(made := layout.run_directory(Path(f"/srv/{'d' * 100}"), None))
    guard = SocketGuard(Path(address.removeprefix("unix:")))
    guard.take()
    guard.release()
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_nobody_is_killed_who_takes_no_longer_than_the_worker_may() -> None:
    cancelled, written, ended = (layout.LAST_SECONDS,) * 3
    assert cancelled + written + 2 * layout.REFUSED_SECONDS + ended < layout.END_SECONDS


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["run", "up.lock", "worker", "lock", "probe"],
        ["blocks", "windows", "staging", "logs", "store.db-wal"],
        ["store.sock", "store.sock.lock", "gateway.json", "lost+found", ".DS_Store"],
        [".fseventsd", ".Spotlight-V100", ".Trashes", ".TemporaryItems", "._keys.json"],
        ["store.db", "thesis.txt"],
    ],
)
def test_ours(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    refuse_foreign(tmp_path)
    refuse_foreign(tmp_path / "absent")


@pytest.mark.parametrize("names", [["thesis.txt"], ["staging", "src"], [".git", "run"]])
def test_not_ours(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(ForeignDirectory, match="choose a directory of its own as --data"):
        refuse_foreign(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
