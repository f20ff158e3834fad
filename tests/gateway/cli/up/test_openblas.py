import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.cli.up.openblas import cores, preload

LIBRARY = "/usr/lib/x/openblas-pthread/libopenblas.so.0"
INSTALL = "apt-get install libopenblas0-pthread"


def threaded(_: str) -> int:
    """An OpenBLAS that loads, and computes on all cores."""
    return 1


def test_preloaded_where_it_is_installed() -> None:
    found = preload("linux", LIBRARY, ["mlx", "mlx-cpu"], {}, threaded)
    assert found == ({"LD_PRELOAD": LIBRARY}, f"OpenBLAS preloaded: {LIBRARY}", "")


def test_before_what_is_preloaded_already() -> None:
    found = preload("linux", LIBRARY, ["mlx"], {"LD_PRELOAD": "/lib/x.so"}, threaded)
    assert found.environment == {"LD_PRELOAD": f"{LIBRARY}:/lib/x.so"}
    chosen = preload("linux", LIBRARY, ["mlx"], {"LD_PRELOAD": "/opt/openblas.so"}, threaded)
    assert chosen.environment == {}
    assert "/opt/openblas.so" in chosen.message


def test_how_to_get_it() -> None:
    found = preload("linux", None, ["mlx"], {}, threaded)
    assert found.environment == {}
    assert found.advice == INSTALL


@pytest.mark.parametrize(("platform", "names"), [("darwin", ["mlx"]), ("linux", ["mlx", "mlx_cuda_13"])])
def test_not_where_the_gpu_computes(platform: str, names: list[str]) -> None:
    assert preload(platform, LIBRARY, names, {}, threaded) == ({}, "", "")


def built(directory: Path, code: str) -> str:
    """A library of that name."""
    library = directory / "libopenblas.so.0"
    compiler = shutil.which("cc")
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"], input=code.encode(), check=True)
    return str(library)


needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@needs_compiler
def test_a_library_that_loads_is_asked(tmp_path: Path) -> None:
    library = built(tmp_path, "int openblas_get_parallel(void) { return 1; }")
    assert preload("linux", library, ["mlx"], {}, cores) == (
        {"LD_PRELOAD": library}, f"OpenBLAS preloaded: {library}", "",
    )  # fmt: skip


@needs_compiler
def test_a_build_for_one_core_is_no_good(tmp_path: Path) -> None:
    library = built(tmp_path, "int openblas_get_parallel(void) { return 0; }")
    found = preload("linux", library, ["mlx"], {}, cores)
    assert found.environment == {"LD_PRELOAD": library}
    assert "one core" in found.message and found.advice == INSTALL


@pytest.mark.parametrize("content", [None, b"no library"])
def test_what_the_loader_ignores_is_not_said_to_be_preloaded(content: bytes | None, tmp_path: Path) -> None:
    library = tmp_path / "libopenblas.so.0"
    if content is not None:
        library.write_bytes(content)
    found = preload("linux", str(library), ["mlx"], {}, cores)
    assert found.environment == {} and "cannot be loaded" in found.message and found.advice == INSTALL
    found = preload("linux", None, ["mlx"], {"LD_PRELOAD": str(library)}, cores)
    assert found.environment == {} and "not installed" in found.message and found.advice == INSTALL
