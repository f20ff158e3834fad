"""Files leave the page cache where the system can do that, and the share that is left is told."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks import page_cache

PAGE = os.sysconf("SC_PAGESIZE")


def test_what_was_just_written_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8 * PAGE))
    assert page_cache.resident([path]) == 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="posix_fadvise and mincore are Linux's")
def test_dropped_files_are_gone_from_memory_and_whole(tmp_path: Path) -> None:
    content = os.urandom(8 * PAGE)
    dropped, kept = tmp_path / "dropped", tmp_path / "kept"
    for path in (dropped, kept):
        path.write_bytes(content)
    page_cache.drop([dropped])
    left = page_cache.resident([dropped, kept])
    if left == 1.0:
        pytest.skip("the temporary directory is in memory, so nothing can be dropped there")
    assert left == 0.5
    assert dropped.read_bytes() == content
    assert page_cache.resident([dropped]) == 1.0
