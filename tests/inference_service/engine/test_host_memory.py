"""Limits on the host's memory, by files as the kernel writes them."""

from pathlib import Path

from inference_service.engine.host_memory import Limit, limits


def group(place: Path, **files: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text)
    return place


def test_a_container(tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert list(limits(own, tmp_path)) == []
    own.write_text("0::/a/b\n")
    inner = group(tmp_path / "a" / "b")
    assert list(limits(own, tmp_path)) == []
    statistics = "anon 7\ninactive_file 1000\nactive_file 500\n"
    group(inner, memory__max="max\n", memory__current="5000\n", memory__stat=statistics)
    assert list(limits(own, tmp_path)) == []
    group(inner, memory__max="9000\n")
    group(inner.parent, memory__max="6000\n", memory__current="5500\n", memory__stat=statistics)
    assert list(limits(own, tmp_path)) == [Limit(9000, 3500), Limit(6000, 4000)], "files in the cache are free"
    group(tmp_path.parent, memory__max="1\n", memory__current="1\n", memory__stat="")
    assert len(list(limits(own, tmp_path))) == 2, "above the root is nothing of ours"


def test_a_limit_counts_where_cached_files_are_not_known(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a\n")
    group(tmp_path / "a", memory__max="9000\n", memory__current="5000\n")
    assert list(limits(own, tmp_path)) == [Limit(9000, 5000)]
