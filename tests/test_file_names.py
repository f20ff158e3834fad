"""File systems that ignore case: no two names of ours differ by it alone, and none of a caller's becomes a file's."""

import secrets
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agentmem import layout
from agentmem.kv.blockfile import FileKind, FileName
from cache_service.files.directory import DataDirectory
from cache_service.tiers.remote.contract import ObjectName
from cache_service.tiers.remote.s3 import object_key
from inference_service.engine.calibration import Calibrations

ROOT = Path(__file__).parents[1]
PLACES = ("protos", "gateway", "cache_service", "inference_service", "benchmarks", "deploy", "docs", "tests")
LONG = Path("/") / ("D" * layout.MAX_SOCKET_PATH_BYTES)


def is_small(name: object) -> bool:
    return str(name) == str(name).lower()


@given(st.sampled_from(FileKind), st.binary(min_size=32, max_size=32))
def test_names_of_kv_have_small_letters_alone(kind: FileKind, chain_hash: bytes) -> None:
    directory, name = DataDirectory(Path("/d")), FileName(kind, chain_hash)
    assert is_small(directory.path(name)) and is_small(directory.new_staging_path(name))
    assert is_small(object_key(ObjectName(kind, chain_hash, chain_hash[:16], secrets.token_hex(8))))
    assert is_small(Calibrations(Path("/d"))._path(chain_hash.hex()))


@given(st.text(st.characters(categories=["L", "N"]), min_size=1))
def test_run_directories_in_a_cache_are_named_by_hashes(name: str) -> None:
    assert is_small(layout.run_directory(LONG / name, None).name)


def test_a_checkout_has_no_two_files_that_differ_by_case() -> None:
    paths = [path for place in PLACES for path in (ROOT / place).rglob("*") if "__pycache__" not in path.parts]
    names = Counter(str(path.relative_to(ROOT)).lower() for path in paths)
    assert [name for name, times in names.items() if times > 1] == []
