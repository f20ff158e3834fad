import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from inference_service.process import keep_private

COMPILING = """
import mlx.core as mx
from inference_service.process import keep_private
keep_private()
mx.eval(mx.compile(lambda x: mx.exp(x) * 2 + mx.sin(x))(mx.ones((4,))))
"""


@pytest.mark.slow
def test_what_mlx_compiles_is_this_users_alone(tmp_path: Path) -> None:
    """Also where MLX is imported already."""
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    subprocess.run([sys.executable, "-c", COMPILING], env=environment, check=True, timeout=120)
    folder = tmp_path / "agentmem" / "compiled"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.rglob("*.so")) or shutil.which("g++") is None, "a library"


def test_a_directory_that_others_could_write_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "agentmem" / "compiled"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    keep_private(environment := {"XDG_CACHE_HOME": str(tmp_path)})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert environment["TMPDIR"] == str(folder)


def test_who_names_a_directory_has_it() -> None:
    keep_private(environment := {"TMPDIR": "/somewhere"})
    assert environment == {"TMPDIR": "/somewhere"}


def test_without_a_place_all_stays_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    keep_private(environment := {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert "TMPDIR" not in environment
    assert "is kept in /tmp" in caplog.text


@pytest.mark.parametrize(("given", "taken"), [(None, "0"), ("1", "1")])
def test_products_in_float32_are_no_others_unless_a_user_says_so(given: str | None, taken: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MLX_ENABLE_TF32"}
    environment |= {"MLX_ENABLE_TF32": given} if given else {}
    program = "import os, inference_service; print(os.environ['MLX_ENABLE_TF32'])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == taken
