"""Parts of a chat, run by Node.js: names, branches, the time that memory saved, and words about loads."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.ui.files import STATIC

ALL = """
globalThis.location = { href: 'http://localhost/ui/' };
globalThis.sessionStorage = { getItem: () => null };
const { nameOf } = await import('./views/talk/naming.js');
const { sidesOf } = await import('./views/talk/branches.js');
const { learn, saved } = await import('./views/talk/memory.js');
const { loadingWords } = await import('./views/models/registry.js');
const { hit } = await import('./format.js');
const { lexed } = await import('./markdown.js');
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Any:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node in PATH; install Node.js")
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(STATIC, folder, dirs_exist_ok=True)
    (folder / "package.json").write_text('{"type": "module"}')

    def evaluated(expression: str, before: str = "") -> Any:
        Path(folder, "test.js").write_text(f"{ALL}{before}\nconsole.log(JSON.stringify({expression}));")
        done = subprocess.run([node, "test.js"], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
        return json.loads(done.stdout)

    return evaluated


def test_names_are_the_first_words(page: Any) -> None:
    given = {
        "The colour of the boat is green.": "the-colour-of-the-boat-is",
        "Don't go!": "dont-go",
        "  Привет, мир  ": "привет-мир",
        "../..?x=#<script>": "x-script",
        "…": "chat",
        "": "chat",
        "w" * 300: "w" * 40,
        f"a {'w' * 39}": "a",
        "😀 hello": "hello",
    }
    assert page(f"{json.dumps(list(given))}.map(nameOf)") == list(given.values())


def test_branches_are_where_turns_part(page: Any) -> None:
    mine = {"agent": "a", "ids": ["1", "2", "3"], "times": ["t1", "t2", "t3"]}
    others = [
        {"agent": "b", "ids": ["1", "x"], "times": ["t1", "t0"]},
        {"agent": "c", "ids": ["1", "x", "y"], "times": ["t1", "t0", "t5"]},
        {"agent": "d", "ids": ["1", "2", "z"], "times": ["t1", "t2", "t4"]},
        {"agent": "e", "ids": ["other", "2", "3"], "times": ["t9", "t2", "t3"]},
        {"agent": "f", "ids": ["1"], "times": ["t1"]},
    ]
    first, second, third = page(f"sidesOf({json.dumps(mine)}, {json.dumps(others)})")
    assert first == {"at": 0, "count": 2, "after": "e"}
    assert second == {"at": 1, "count": 2, "before": "b"}
    assert third == {"at": 0, "count": 2, "after": "d"}
    assert page(f"sidesOf({json.dumps(mine)}, [])") == [None, None, None]


def test_the_time_saved_is_at_the_fastest_speed_seen(page: Any) -> None:
    turns = """
    const cache = (prompt_tokens, hot) => ({ prompt_tokens, cached: hot ? { hot } : {} });
    const before = saved('m', cache(100, 80));
    learn('m', { usage: cache(100, 0), timings: { prefill: 1 } });
    learn('m', { usage: cache(1000, 0), timings: { prefill: 5 } });
    learn('m', { usage: cache(1000, 990), timings: { prefill: 0.0001 } });
    """
    later = "saved('m', cache(500, 400), { load: 0.5 }), saved('m', cache(9, 4), { load: 1 })"
    assert page(f"[before, {later}, saved('n', cache(9, 4))]", turns) == [0, 1.5, 0, 0]


def test_words_about_a_load(page: Any) -> None:
    loads = [
        None,
        {"stage": "wait", "share": 0, "remaining": None, "once": False},
        {"stage": "measure", "share": 0.4, "remaining": 20, "once": True},
        {"stage": "fetch", "share": 1, "remaining": 0, "once": True},
        {"stage": "of a later worker", "share": 0.999, "remaining": 0.3, "once": False},
    ]
    assert page(f"{json.dumps(loads)}.map((progress) => loadingWords({{ model_id: 'smol', progress }}))") == [
        "loading smol",
        "loading smol, 0 %: waiting for its turn",
        "loading smol, 40 %: measuring how few bits its KV needs, once per model, about 20 s left",
        "loading smol: opening its files",
        "loading smol, 99 %: of a later worker",
    ]


def test_a_cache_hit_is_never_more_than_it_was(page: Any) -> None:
    caches = [{"cached": {"hot": 40, "warm": 7}, "prompt_tokens": 62}, {"cached": {}, "prompt_tokens": 0}]
    caches.append({"cached": {"hot": 9999}, "prompt_tokens": 10_000})
    assert page(f"{json.dumps(caches)}.map(hit)") == [
        "cache hit 47/62 (76 %)",
        "cache hit 0/0 (0 %)",
        "cache hit 9,999/10,000 (99 %)",
    ]


def test_tables_of_too_many_cells_stay_text(page: Any) -> None:
    table = "'|a'.repeat(wide) + '\\n' + '|-'.repeat(wide) + '\\n' + 'a\\n'.repeat(long) + '\\n'"
    kinds = page(
        f"[[3, 3, 2], [1000, 2000, 1], [45, 40, 3]].map(([wide, long, times]) => lexed(({table}).repeat(times))"
        ".map(({ type }) => type).filter((type) => type !== 'space'))"
    )
    assert kinds == [["table", "table"], ["paragraph"], ["table", "table", "paragraph"]]


def test_texts_that_are_drawn_together_share_the_time(page: Any) -> None:
    slow = """
    let now = 0;
    performance.now = () => (now += 200);
    const read = () => ['a', 'b', 'c', 'd'].map((text) => lexed(text) !== null);
    const together = read();
    await new Promise((drawn) => { setTimeout(drawn, 50); });
    """
    assert page("[together, read()]", slow) == [[True, True, True, False]] * 2
    assert page("lexed('a'.repeat(10_001))") is None
