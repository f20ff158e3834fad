"""The worker's half as a process, where models cannot be looked at."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.process.checkup import Finding, State, parse
from agentmem.process.service import CANNOT_SERVE


def half(*arguments: str, **environment: str) -> list[Finding]:
    """What it found; it must come to its end."""
    command = [sys.executable, "-m", "inference_service.doctor", *arguments]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return [said for said in map(parse, told.stdout.splitlines()) if isinstance(said, Finding)]


def test_a_build_of_mlx_whose_libraries_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    missing = "libcuda.so.1: cannot open shared object file"
    (tmp_path / "mlx" / "core.py").write_text(f"raise ImportError({missing!r})\n")
    (found,) = half(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert found.check == "MLX" and found.state is State.PROBLEM
    assert missing in found.found and found.advice.startswith("install MLX")


@pytest.mark.slow("True")
@pytest.mark.parametrize("there", [True, False])
def test_a_worker_without_mlx_says_what_to_install(there: bool, tmp_path: Path) -> None:
    """Where plain `pip install agentmem` was used on Linux there is no MLX at all."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    if there:
        (tmp_path / "mlx" / "core.py").write_text("raise ImportError('libcuda.so.1: cannot open')\n")
    command = [sys.executable, "-m", "inference_service", "--data", str(tmp_path / "data")]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == CANNOT_SERVE
    (line,) = ended.stderr.splitlines()
    missing = "libcuda.so.1: cannot open" if there else "No module named 'mlx.core'"
    assert line.startswith(f"agentmem-worker: MLX cannot be imported: {missing}; install MLX")
    assert "pip install 'agentmem[" in line


def test_settings_that_the_worker_would_refuse() -> None:
    (found,) = half(AGENTMEM_WORKER_KV_BITS="7")
    assert found.check == "worker settings" and found.state is State.PROBLEM and "kv_bits" in found.found
