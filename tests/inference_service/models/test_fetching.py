"""Real downloads from a hub on localhost, in a process of its own (`fetch_child`) that knows when it uses a network."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_service.models.sources import registry
from tests.model_hub import Hub, Repository, model_hub, telling
from tests.tiny_models import INDEX

CHUNK = 10 << 20
"""huggingface_hub writes, and tells, in pieces of this size."""

Fetcher = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with model_hub() as running:
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def environment(hub: Hub, home: Path) -> dict[str, str]:
    return hub.environment(home)


@pytest.fixture(scope="module")
def child(environment: dict[str, str]) -> Iterator[Fetcher]:
    with telling("tests.inference_service.models.fetch_child", environment) as told:
        yield told


@pytest.fixture
def tell(child: Fetcher, hub: Hub) -> Fetcher:
    hub.seen.clear()

    def told(source: str, **order: Any) -> dict[str, Any]:
        came = child(source=source, **order)
        message = came.get("message", "")
        assert "hf_" not in message and "://" not in message
        return came

    return told


def model(*shards: bytes) -> dict[str, bytes]:
    """Files of a model, of which nothing could be loaded."""
    return {
        "config.json": b'{"model_type": "llama"}',
        **{f"model-{number}.safetensors": data for number, data in enumerate(shards, 1)},
        "README.md": b"not needed",
        "model.gguf": b"not needed",
    }


def demo_files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(registry([])["demo"].source).iterdir() if path.is_file()}


@pytest.mark.slow
def test_a_whole_download_and_then_the_cache(tell: Fetcher, hub: Hub) -> None:
    hub.repositories["org/whole"] = Repository(files := model(b"a" * (2 * CHUNK + 5), b"b" * 1000, b"c" * 5000))
    came = tell("org/whole")
    assert {path.name: path.read_bytes() for path in Path(came["path"]).iterdir()} == {
        name: data for name, data in files.items() if not data.startswith(b"not")
    }
    shares = came["shares"]
    assert shares == sorted(shares)
    assert shares[0] == 0.0 and shares[-1] == 1.0
    assert [share for share in shares if 0.4 < share < 0.6], "there is progress within a file"
    assert came["attempts"], "the child notices the network"
    hub.seen.clear()
    for offline in (False, True):
        again = tell("org/whole", offline=offline, blocked=True)
        assert (again["path"], again["shares"], again["attempts"]) == (came["path"], [1.0], [])


def test_a_cached_model_stays_what_it_is(tell: Fetcher, hub: Hub) -> None:
    hub.repositories["org/moves"] = Repository(model(b"old"))
    path = tell("org/moves")["path"]
    hub.repositories["org/moves"] = Repository(model(b"new"))
    assert tell("org/moves")["path"] == path


@pytest.mark.slow("True")
@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_is_cut_goes_on_where_it_was(tell: Fetcher, hub: Hub, ranges: bool) -> None:
    """Or from the beginning, where the hub doesn't know ranges; progress doesn't fall then."""
    data = os.urandom(2 * CHUNK + 7)
    hub.repositories[f"org/cut-{ranges}"] = Repository(
        model(data), drop_after={"model-1.safetensors": CHUNK + 99}, ranges=ranges
    )
    came = tell(f"org/cut-{ranges}")
    assert (Path(came["path"]) / "model-1.safetensors").read_bytes() == data
    assert hub.fetched("model-1.safetensors") == [None, f"bytes={CHUNK}-"]
    assert came["shares"] == sorted(came["shares"])


def test_a_download_that_fails_goes_on_with_what_is_missing(tell: Fetcher, hub: Hub, home: Path) -> None:
    files = model(b"a" * 3000, b"b" * 1000)
    repository = hub.repositories["org/later"] = Repository(files, fail_files={"model-2.safetensors": 503})
    came = tell("org/later")
    assert (came["error"], came["shares"][-1] < 1) == ("Unavailable", True)
    assert "'org/later': 127.0.0.1 answered 503; complete files are kept" in came["message"]
    assert not list(home.rglob("*.incomplete"))
    came = tell("org/later", offline=True)
    assert came["error"] == "FailedPrecondition" and "is not whole in" in came["message"]
    assert came["attempts"] == []
    repository.fail_files.clear()
    hub.seen.clear()
    came = tell("org/later")
    assert 0.7 < came["shares"][0] < 0.8 and came["shares"][-1] == 1.0, "3/4 were here"
    assert hub.fetched("model-1.safetensors") == []
    assert hub.fetched("model-2.safetensors") == [None]


NUMBERED = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.mark.parametrize("cached", [["config.json"], [NUMBERED[0]], ["config.json", NUMBERED[0]]])
def test_part_of_a_repository_that_another_program_cached_is_completed(
    tell: Fetcher, hub: Hub, home: Path, cached: list[str]
) -> None:
    name = f"part{len(cached)}{cached[0]}"
    files = {**model(), NUMBERED[0]: b"a", NUMBERED[1]: name.encode()}
    hub.repositories[f"org/{name}"] = repository = Repository(files)
    there = home / "hub" / f"models--org--{name}"
    (there / "refs").mkdir(parents=True)
    (there / "refs" / "main").write_text(repository.sha)
    (there / "snapshots" / repository.sha).mkdir(parents=True)
    for file in cached:
        (there / "snapshots" / repository.sha / file).write_bytes(files[file])
    assert "is not whole in" in tell(f"org/{name}", offline=True)["message"]
    directory = Path(tell(f"org/{name}")["path"])
    assert directory == there / "snapshots" / repository.sha
    assert (directory / NUMBERED[1]).read_bytes() == name.encode()
    assert hub.fetched(cached[0]) == []
    assert tell(f"org/{name}", offline=True)["path"] == str(directory)


@pytest.mark.parametrize("by_another_program", [False, True])
def test_a_stale_index_keeps_no_model_from_being_whole(
    tell: Fetcher, hub: Hub, home: Path, by_another_program: bool
) -> None:
    """Many conversions have the index of the model that they were made of, which had more files."""
    name = f"stale-{by_another_program}"
    index = {"weight_map": {"a": "model-00001-of-00005.safetensors", "b": "model-00002-of-00005.safetensors"}}
    files = demo_files() | {INDEX: json.dumps(index).encode()}
    hub.repositories[f"org/{name}"] = repository = Repository(files)
    if by_another_program:
        there = home / "hub" / f"models--org--{name}"
        (there / "refs").mkdir(parents=True)
        (there / "refs" / "main").write_text(repository.sha)
        directory = there / "snapshots" / repository.sha
        directory.mkdir(parents=True)
        for file, data in files.items():
            (directory / file).write_bytes(data)
    else:
        directory = Path(tell(f"org/{name}")["path"])
    came = tell(f"org/{name}", blocked=True)
    assert (came.get("path"), came["attempts"]) == (str(directory), []), came
    assert tell(f"org/{name}", do="is_here", blocked=True) == {"here": True, "attempts": []}


@pytest.mark.slow
def test_the_caller_ends_a_download(tell: Fetcher, hub: Hub, home: Path) -> None:
    hub.repositories["org/stopped"] = Repository(model(b"a" * (2 * CHUNK), b"b" * (2 * CHUNK), b"c" * (2 * CHUNK)))
    came = tell("org/stopped", stop_at=0.1)
    assert came["error"] == "Enough"
    assert len([share for share in came["shares"] if share >= 0.1]) == 1, "it is told nothing more"
    assert not list(home.rglob("*.incomplete"))
    assert tell("org/stopped")["shares"][-1] == 1.0


@pytest.mark.parametrize(
    ("repository", "error", "said"),
    [
        (None, "FailedPrecondition", "127.0.0.1 has none that the worker may read (404): look at the spelling"),
        (Repository({}, status=401, code="RepoNotFound"), "FailedPrecondition", "may read (401): look at the spelling"),
        (Repository({}, status=403, code="GatedRepo"), "FailedPrecondition", "accept its terms there if it is gated"),
        (Repository({}, status=403), "FailedPrecondition", "(403)"),
        (Repository({}, status=429), "Unavailable", "answered 429"),
        (Repository({}, status=500), "Unavailable", "answered 500"),
        (Repository({}, status=400), "FailedPrecondition", "answered 400"),
        (Repository({"model.gguf": b"x"}), "NothingToLoad", "has no config.json or no model*.safetensors"),
        (
            Repository(model(b"x"), claimed={"model-1.safetensors": 10**18}),
            "FailedPrecondition",
            "make room there, or set HF_HOME to a directory on a larger disk",
        ),
        (
            Repository(model(b"x"), fail_files={"config.json": 403}),
            "FailedPrecondition",
            "may read (403)",
        ),
    ],
)
def test_what_a_hub_refuses(tell: Fetcher, hub: Hub, repository: Repository | None, error: str, said: str) -> None:
    hub.repositories.pop("org/refused", None)
    if repository is not None:
        hub.repositories["org/refused"] = repository
    came = tell("org/refused")
    assert (came["error"], said in came["message"]) == (error, True), came["message"]
    hub.repositories.pop("org/refused", None)


def test_a_cache_that_cannot_be_read(tell: Fetcher, home: Path) -> None:
    (home / "hub" / "models--org--odd" / "refs" / "main").mkdir(parents=True)
    came = tell("org/odd")
    assert (came["error"], came["attempts"]) == ("FailedPrecondition", [])
    assert "cannot be used (Is a directory)" in came["message"]


def test_no_hub_id(tell: Fetcher) -> None:
    for source in ("a/b/c", "a b", "-"):
        came = tell(source)
        assert (came["error"], came["attempts"]) == ("FailedPrecondition", [])
        assert "no hub id, which would be OWNER/NAME" in came["message"]


def test_without_a_network(tell: Fetcher) -> None:
    came = tell("org/unreached", blocked=True)
    assert came["error"] == "Unavailable" and "127.0.0.1 cannot be reached" in came["message"]
    assert came["attempts"]


def test_offline_without_a_cache(tell: Fetcher, hub: Hub) -> None:
    hub.repositories["org/there"] = Repository(model(b"x"))
    came = tell("org/there", offline=True)
    assert (came["error"], came["attempts"], hub.seen) == ("FailedPrecondition", [], [])
    assert "the worker is offline; load it once without --offline, AGENTMEM_OFFLINE" in came["message"]


def test_loading_a_directory_needs_no_network(tell: Fetcher, hub: Hub) -> None:
    """With a fetched one and the bundled one; huggingface_hub is not told to be offline here."""
    hub.repositories["org/demo"] = Repository(demo_files())
    path = tell("org/demo")["path"]
    for directory in (path, registry([])["demo"].source):
        came = tell(directory, do="load", blocked=True)
        assert came["layers"] > 0
        assert came["attempts"] == []


def test_gone_offline_nothing_uses_the_network(tell: Fetcher, hub: Hub) -> None:
    """The last test of the process: it stays offline."""
    hub.repositories["org/late"] = Repository(model(b"x"))
    tell("", do="go_offline")
    came = tell("org/late")
    assert (came["error"], came["attempts"]) == ("FailedPrecondition", [])
    assert "the worker is offline" in came["message"]


@pytest.mark.slow
def test_the_worker_is_offline_where_it_is_told(hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    hub.seen.clear()
    worker = subprocess.Popen(
        [sys.executable, "-m", "inference_service", "--model", "org/none", "--data", str(tmp_path), "--metrics", ""],
        env=environment | {"AGENTMEM_OFFLINE": "1", "AGENTMEM_RUN_DIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stderr is not None
    try:
        said = next(line for line in worker.stderr if "cannot load the default model" in line)
    finally:
        worker.terminate()
        worker.communicate(timeout=60)
    assert "org/none" in said and "the worker is offline" in said
    assert hub.seen == []
