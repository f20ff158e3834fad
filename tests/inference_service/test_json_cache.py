"""Values are remembered by each user, also where they cannot be written."""

from pathlib import Path

import pytest

from inference_service.json_cache import JsonCache


def test_it_is_there_for_others_with_what_they_remember(tmp_path: Path) -> None:
    one, other = (JsonCache(tmp_path / "worker" / "measured.json") for _ in range(2))
    one.put("a", [1.5, "x"])
    other.put("b", {"c": None})
    assert (one.get("b"), other.get("a"), one.get("c")) == ({"c": None}, [1.5, "x"], None)
    one.update(lambda known: {name: known[name] for name in known if name != "a"})
    assert (other.get("a"), other.get("b")) == (None, {"c": None})
    assert [path.name for path in (tmp_path / "worker").iterdir()] == ["measured.json"]


@pytest.mark.parametrize("damage", ["", "not json", "null", "[]", '{"a": 1'])
def test_what_is_damaged_is_empty(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "measured.json"
    path.write_text(damage)
    memory = JsonCache(path)
    assert memory.get("a") is None
    memory.put("a", 2)
    assert JsonCache(path).get("a") == 2


def test_what_cannot_be_written_is_remembered_as_long_as_it_is_asked_for(tmp_path: Path) -> None:
    directory = tmp_path / "worker"
    directory.touch()
    memory = JsonCache(directory / "measured.json")
    memory.put("a", 1)
    memory.put("b", 2)
    assert (memory.get("a"), memory.get("b")) == (1, 2)
    directory.unlink()
    memory.put("c", 3)
    assert [JsonCache(directory / "measured.json").get(name) for name in "abc"] == [1, 2, 3]
