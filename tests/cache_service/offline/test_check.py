"""`agentmem store check`: a directory made by real turns is clean; every kind of damage is found, named and mended."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentmem.kv import blockfile
from cache_service.offline.check import check
from cache_service.offline.commands import main
from cache_service.offline.findings import CannotCheck

from .. import kv
from ..conftest import running
from .directory import (
    ADA,
    Fault,
    block,
    change,
    everything,
    fill,
    flip,
    headers,
    ledgers,
    zero_table,
)


@pytest.fixture
async def clean(data: Path) -> Path:
    await fill(data)
    return data


def whats(data: Path, repair: bool = False) -> list[str]:
    return sorted(finding.what for finding in check(data, repair).findings)


def swap(data: Path) -> None:
    one, two = block(data, ADA, 0), block(data, ADA, 1)
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)


def lie(data: Path) -> None:
    """A header of another namespace, with a row whose digest and size agree."""
    path, header = block(data, ADA, 0), headers(ADA)[0]
    content = kv.content(replace(header, namespace="strange"))
    path.write_bytes(content)
    digest = blockfile.digest(content)
    change(
        data,
        "UPDATE files SET digest = ?, size_bytes = ? WHERE kind = 1 AND chain_hash = ?",
        digest,
        len(content),
        header.chain_hash,
    )


def break_tensors(data: Path) -> None:
    """Tensors that overlap, with a row whose digest agrees."""
    path, header = block(data, ADA, 0), headers(ADA)[0]
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    text = json.loads(content[8 : 8 + size])
    text["k.scales"]["data_offsets"] = text["k.biases"]["data_offsets"]
    made = json.dumps(text, separators=(",", ":")).encode().ljust(size)
    content = content[:8] + made + content[8 + size :]
    assert len(made) == size
    path.write_bytes(content)
    change(
        data,
        "UPDATE files SET digest = ? WHERE kind = 1 AND chain_hash = ?",
        blockfile.digest(content),
        header.chain_hash,
    )


def link(data: Path) -> None:
    path = block(data, ADA, 0)
    path.rename(data / "elsewhere")
    (data / "elsewhere").chmod(0o600)
    path.symlink_to(data / "elsewhere")


FILE_FAULTS: dict[str, tuple[Fault, list[str]]] = {
    "a flipped bit": (lambda data: flip(block(data, ADA, 0)), ["digest"]),
    "a flipped bit of the header": (lambda data: flip(block(data, ADA, 0), 0), ["header"]),
    "cut off": (lambda data: os.truncate(block(data, ADA, 0), 1000), ["size"]),
    "empty": (lambda data: os.truncate(block(data, ADA, 0), 0), ["size"]),
    "zeros at the end": (lambda data: os.truncate(block(data, ADA, 0), 10**6), ["size"]),
    "swapped": (swap, ["size", "size"]),
    "a lying header": (lie, ["header"]),
    "overlapping tensors": (break_tensors, ["header"]),
    "a link": (link, ["unreadable"]),
    "gone": (lambda data: block(data, ADA, 0).unlink(), ["missing file"]),
}


def orphan(data: Path) -> None:
    target = data / "blocks" / "00" / f"{'00' * 32}.safetensors"
    target.parent.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(block(data, ADA, 0), target)


def misplace(data: Path) -> None:
    shutil.copy(block(data, ADA, 0), data / "windows" / block(data, ADA, 0).name)


def put(data: Path, name: str, mode: int = 0o600) -> None:
    (data / name).write_bytes(b"x")
    (data / name).chmod(mode)


STRAYS: dict[str, tuple[Fault, list[str]]] = {
    "a file without a row": (orphan, ["orphan"]),
    "a copy in another folder": (misplace, ["orphan"]),
    "left in staging": (lambda data: put(data, "staging/half.safetensors"), ["staging"]),
    "an open file": (lambda data: block(data, ADA, 0).chmod(0o644), ["mode"]),
    "an open database": (lambda data: (data / "store.db").chmod(0o640), ["mode"]),
    "an open warm.db": (lambda data: (data / "warm.db").chmod(0o640), ["mode"]),
    "an open directory": (lambda data: data.chmod(0o755), ["mode"]),
    "an open folder": (lambda data: (data / "windows").chmod(0o755), ["mode"]),
}


async def test_what_turns_made_is_clean_and_not_a_byte_of_it_changes(clean: Path) -> None:
    before = everything(clean)
    checked = check(clean)
    assert checked.findings == [] and checked.is_clean
    assert (checked.agents, checked.published) == (3, 9)
    assert everything(clean) == before


@pytest.mark.parametrize("fault", [*FILE_FAULTS, *STRAYS])
async def test_a_fault_is_found_named_and_mended(clean: Path, fault: str) -> None:
    damage, expected = {**FILE_FAULTS, **STRAYS}[fault]
    damage(clean)
    kept = ledgers(clean)
    found = check(clean)
    assert sorted(finding.what for finding in found.findings) == expected and not found.is_clean
    for finding in found.findings:
        assert finding.where and finding.problem and finding.consequence and finding.repair
        assert fault not in FILE_FAULTS or finding.agents
    mended = check(clean, repair=True)
    assert mended.is_clean and mended.mended == mended.findings
    assert whats(clean) in ([], ["orphan"] if fault == "a link" else [])
    assert ledgers(clean) == kept
    async with running(clean) as store:
        assert store.data == clean


async def test_what_the_store_never_makes_is_found_and_left(clean: Path) -> None:
    for name in ("blocks/notes.txt", "staging/notes.txt"):
        put(clean, name)
    checked = check(clean, repair=True)
    assert sorted(finding.what for finding in checked.findings) == ["orphan", "staging"]
    assert checked.mended == [] and all("move it away" in finding.repair for finding in checked.findings)
    assert len(list(clean.rglob("notes.txt"))) == 2


LEDGER_FAULTS = {
    "text": "UPDATE segments SET text = x'00' WHERE id = 3",
    "turns": "UPDATE segments SET turns = turns + 1 WHERE id = 3",
    "parent": "UPDATE segments SET parent_id = 99 WHERE id = 3",
    "agent's tokens": "UPDATE agents SET tokens = tokens + 1 WHERE agent_id = 'ada'",
    "agent's bytes": "UPDATE agents SET text_bytes = text_bytes - 1 WHERE agent_id = 'ada'",
    "agent's turns": "UPDATE agents SET turns = 9 WHERE agent_id = 'ada'",
    "agent's version": "UPDATE agents SET version = 1 WHERE agent_id = 'ada'",
    "agent's head": "UPDATE agents SET head_segment = 99 WHERE agent_id = 'ada'",
}


@pytest.mark.parametrize("fault", LEDGER_FAULTS)
async def test_damage_of_a_ledger_is_named_with_its_agent_and_left(clean: Path, fault: str) -> None:
    change(clean, LEDGER_FAULTS[fault])
    kept = ledgers(clean)
    for _ in range(2):
        damage = [finding for finding in check(clean, repair=True).findings if finding.what == "ledger"]
        assert damage and all(finding.agents == ("default/ada/demo",) for finding in damage)
        assert ledgers(clean) == kept


@pytest.mark.parametrize("table", ["segments", "agents", "turns", "kv_changes", "segments_by_parent"])
async def test_a_page_of_zeros_is_found_and_nothing_is_touched(clean: Path, table: str) -> None:
    zero_table(clean, table)
    orphan(clean)
    before = everything(clean)
    checked = check(clean, repair=True)
    assert any(finding.what == "database" and "store recover" in finding.repair for finding in checked.findings)
    assert checked.mended == [] and everything(clean) == before


async def test_a_store_that_runs_a_newer_one_and_no_store_at_all_are_refused(clean: Path, tmp_path: Path) -> None:
    async with running(clean):
        with pytest.raises(CannotCheck, match="stop it"):
            check(clean)
    with pytest.raises(CannotCheck, match=r"no store\.db"):
        check(tmp_path)
    change_version = sqlite3.connect(clean / "store.db")
    change_version.execute("PRAGMA user_version = 99")
    change_version.close()
    before = everything(clean)
    with pytest.raises(CannotCheck, match="newer agentmem"):
        check(clean, repair=True)
    assert everything(clean) == before


async def test_the_command_tells_people_and_machines(clean: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["check", str(clean), *arguments])
        return result.exit_code, result.output

    assert run()[0] == 0
    flip(block(clean, ADA, 0))
    status, text = run()
    assert status == 1 and "found: digest: blocks/" in text and "--repair" in text and "default/ada/demo" in text
    status, text = run("--json", "--repair")
    (finding,) = json.loads(text)["findings"]
    assert (
        status == 0 and finding["what"] == "digest" and finding["repaired"] and "default/eve/demo" in finding["agents"]
    )
    assert run("--json")[0] == 0
    assert CliRunner().invoke(main, ["check", str(clean / "nothing")]).exit_code == 2
