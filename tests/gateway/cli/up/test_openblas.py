import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.cli.up import openblas
from gateway.cli.up.openblas import preload, preload_here

LIBRARY = "/usr/lib/x/openblas-pthread/libopenblas.so.0"
SLEEPS = {"OPENBLAS_THREAD_TIMEOUT": "16"}
INSTALL = "apt-get install libopenblas0-pthread"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run with an OpenBLAS whose threads sleep, too."""
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openblas, "cores", lambda _: 1)


@pytest.mark.usefixtures("threaded")
def test_preloaded_where_it_is_installed() -> None:
    assert preload(LIBRARY, "") == ({"LD_PRELOAD": LIBRARY, **SLEEPS}, f"OpenBLAS preloaded: {LIBRARY}", "")


@pytest.mark.usefixtures("threaded")
def test_before_what_is_preloaded_already() -> None:
    assert preload(LIBRARY, "/lib/x.so").environment == {"LD_PRELOAD": f"{LIBRARY}:/lib/x.so", **SLEEPS}
    chosen = preload(LIBRARY, "/opt/openblas.so")
    assert chosen.environment == SLEEPS
    assert "/opt/openblas.so" in chosen.message


@pytest.mark.usefixtures("threaded")
def test_what_the_user_says_of_its_threads_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "26")
    assert preload(LIBRARY, "").environment == {"LD_PRELOAD": LIBRARY}
    assert preload(LIBRARY, LIBRARY).environment == {}


def test_how_to_get_it() -> None:
    found = preload(None, "")
    assert found.environment == {}
    assert found.advice == INSTALL


@pytest.mark.parametrize(("platform", "name"), [("darwin", "mlx"), ("linux", "mlx_cuda_13")])
def test_not_where_the_gpu_computes(platform: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(metadata, "distributions", lambda: [SimpleNamespace(name=name)])
    assert preload_here() == ({}, "", "")


def built(directory: Path, code: str) -> str:
    library = directory / "libopenblas.so.0"
    compiler = shutil.which("cc")
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"], input=code.encode(), check=True)
    return str(library)


needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@needs_compiler
def test_a_library_that_loads_is_asked(tmp_path: Path) -> None:
    library = built(tmp_path, "int openblas_get_parallel(void) { return 1; }")
    assert preload(library, "") == (
        {"LD_PRELOAD": library, **SLEEPS}, f"OpenBLAS preloaded: {library}", "",
    )  # fmt: skip


@needs_compiler
def test_a_build_for_one_core_is_no_good(tmp_path: Path) -> None:
    library = built(tmp_path, "int openblas_get_parallel(void) { return 0; }")
    found = preload(library, "")
    assert found.environment == {"LD_PRELOAD": library, **SLEEPS}
    assert "one core" in found.message and found.advice == INSTALL


@pytest.mark.parametrize("content", [None, b"no library"])
def test_what_the_loader_ignores_is_not_said_to_be_preloaded(content: bytes | None, tmp_path: Path) -> None:
    library = tmp_path / "libopenblas.so.0"
    if content is not None:
        library.write_bytes(content)
    found = preload(str(library), "")
    assert found.environment == {} and "cannot be loaded" in found.message and found.advice == INSTALL
    found = preload(None, str(library))
    assert found.environment == {} and "not installed" in found.message and found.advice == INSTALL
