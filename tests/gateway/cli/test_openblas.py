import pytest

from gateway.cli.openblas import preload

LIBRARY = "/usr/lib/x/openblas-pthread/libopenblas.so.0"


def test_preloaded_where_it_is_installed() -> None:
    found = preload("linux", LIBRARY, ["mlx", "mlx-cpu"], {})
    assert found.environment == {"LD_PRELOAD": LIBRARY}
    assert found.message == f"OpenBLAS preloaded: {LIBRARY}"


def test_before_what_is_preloaded_already() -> None:
    found = preload("linux", LIBRARY, ["mlx"], {"LD_PRELOAD": "/lib/x.so"})
    assert found.environment == {"LD_PRELOAD": f"{LIBRARY}:/lib/x.so"}
    chosen = preload("linux", LIBRARY, ["mlx"], {"LD_PRELOAD": "/opt/openblas.so"})
    assert chosen.environment == {}
    assert "/opt/openblas.so" in chosen.message


def test_how_to_get_it() -> None:
    found = preload("linux", None, ["mlx"], {})
    assert found.environment == {}
    assert "apt-get install libopenblas0-pthread" in found.message


@pytest.mark.parametrize(("platform", "names"), [("darwin", ["mlx"]), ("linux", ["mlx", "mlx_cuda_13"])])
def test_not_where_the_gpu_computes(platform: str, names: list[str]) -> None:
    assert preload(platform, LIBRARY, names, {}) == ({}, "")
