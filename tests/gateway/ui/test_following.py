"""How long the page asks for a run that nobody goes on with, run by Node.js beside a gateway of a few lines."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.ui.files import STATIC

GATEWAY = """
export class GatewayError extends Error {}
export const partOf = (id) => id;
export const request = async () => ({ body: null });
let asked = 0;
export async function json() {
  asked += 1;
  if (asked > 500) process.exit(3);
  return { workflow: { state: 'interrupted', agents: [] } };
}
"""
PAGE = """
import { follow, nothingYet } from './views/workflows/following.js';
const waits = [];
const told = [];
globalThis.requestAnimationFrame = (then) => { queueMicrotask(then); return 1; };
globalThis.setTimeout = (then, milliseconds) => { waits.push(milliseconds); queueMicrotask(then); };
await follow('w', nothingYet(), false, new AbortController().signal, (now) => told.push(now));
const { state, run } = told.at(-1);
console.log(JSON.stringify({ waits, state, workflow: run.workflow.state }));
"""


def test_an_interrupted_run_is_asked_for_ever_less_often_and_not_for_ever(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node in PATH; install Node.js")
    shutil.copytree(STATIC, tmp_path, dirs_exist_ok=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "gateway.js").write_text(GATEWAY)
    (tmp_path / "events.js").write_text("export async function* events() {}")
    (tmp_path / "page.js").write_text(PAGE)
    done = subprocess.run([node, "page.js"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    waits = found.pop("waits")
    assert waits == sorted(waits) and waits[:5] == [1000, 2000, 4000, 8000, 15_000] and sum(waits) < 320_000
    assert found == {"state": "over", "workflow": "interrupted"}
