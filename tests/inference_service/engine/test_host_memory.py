"""What a process may take of the host's memory: by files as the kernel writes them, and by limits that are real."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inference_service.engine.host_memory import Limit, available_bytes, cgroup_limits, total_bytes

MIB = 1 << 20


def group(place: Path, **files: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text)
    return place


def test_a_container(tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert list(cgroup_limits(own, tmp_path)) == []
    own.write_text("0::/a/b\n")
    inner = group(tmp_path / "a" / "b")
    assert list(cgroup_limits(own, tmp_path)) == []
    statistics = "anon 7\ninactive_file 1000\nactive_file 500\n"
    group(inner, memory__max="max\n", memory__current="5000\n", memory__stat=statistics)
    assert list(cgroup_limits(own, tmp_path)) == []
    group(inner, memory__max="9000\n")
    group(inner.parent, memory__max="6000\n", memory__current="5500\n", memory__stat=statistics)
    assert list(cgroup_limits(own, tmp_path)) == [Limit(9000, 3500), Limit(6000, 4000)], "files in the cache are free"
    group(tmp_path.parent, memory__max="1\n", memory__current="1\n", memory__stat="")
    assert len(list(cgroup_limits(own, tmp_path))) == 2, "above the root is nothing of ours"


def test_a_limit_counts_where_cached_files_are_not_known(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a\n")
    group(tmp_path / "a", memory__max="9000\n", memory__current="5000\n")
    assert list(cgroup_limits(own, tmp_path)) == [Limit(9000, 5000)]


def test_version_1(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("9:cpu:/x\n7:memory:/a\n")
    group(
        tmp_path / "memory" / "a",
        memory__limit_in_bytes="7000\n",
        memory__usage_in_bytes="3000\n",
        memory__stat="inactive_file 1\ntotal_inactive_file 200\ntotal_active_file 300\n",
    )
    assert list(cgroup_limits(own, tmp_path)) == [Limit(7000, 2500)]


@pytest.mark.skipif(sys.platform != "linux", reason="what counts against a process's limits is known on Linux")
def test_a_limit_on_the_process_alone() -> None:
    """Of a gibibyte of data a process that holds 300 MiB has less than 724 left, and more than nothing."""
    assert available_bytes() <= total_bytes()
    script = """
import json, resource
from inference_service.engine import host_memory
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
before = host_memory.available_bytes()
held = bytearray(300 << 20)
print(json.dumps([host_memory.total_bytes(), before, host_memory.available_bytes()]))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    total, before, after = json.loads(ran.stdout)
    assert total == 1024 * MIB
    assert 0 < after < total - 300 * MIB
    assert before - after >= 300 * MIB
