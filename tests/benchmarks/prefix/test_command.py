"""What the prefix benchmark counts, and its command."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.plots import Point
from benchmarks.prefix import command


def conversation(text: list[int], tokens: list[int]) -> dict[str, Any]:
    computed = {"text": text, "text, 0.8": tokens, "tokens": tokens}
    return {"prompts": [1000] * len(text), "computed": computed, "sequence": {"text": 1010, "tokens": 1000}}


def test_scores() -> None:
    found = command.scores([conversation([100, 100], [100, 301]), conversation([100, 100], [95, 200])])
    assert found["saved"]["text"]["share"] == pytest.approx(0.9)
    assert found["saved"]["tokens"]["share"] == pytest.approx(1 - 696 / 4000)
    for saved in found["saved"].values():
        assert saved["low"] <= saved["share"] <= saved["high"]
    assert (found["turns"], found["many_lost"], found["lost_most"], found["gained_most"]) == (4, 0.25, 201, 5)
    assert found["sequence_longer"] == pytest.approx(0.01)


def test_a_claim_is_of_the_worst_row() -> None:
    good, bad = (command.scores([conversation([100], [tokens])]) for tokens in (200, 50))
    rows = [{"scenario": "continued", "tokenizer": "demo", "rate": 0.0, **each} for each in (good, bad)]
    over_tokens, over_ratio = command.claims({"rows": rows})
    assert not over_tokens.met
    assert over_tokens.value == over_ratio.value == pytest.approx(0.9 / 0.95)
    assert command.claims({"rows": rows[:1]})[0].met


def test_plots_are_of_the_greatest_rate_of_each_tokenizer() -> None:
    few, many = (command.scores([conversation([100], [tokens])]) for tokens in (200, 300))
    rows = [
        {"scenario": "continued", "tokenizer": tokenizer, "rate": rate, **scores}
        for tokenizer, rate, scores in (("demo", 0.0, few), ("demo", 0.1, many), ("bpe", 0.0, few))
    ]
    demo, bpe = command.plots({"rows": rows})
    assert (demo.name, bpe.name) == ("saved-demo", "saved-bpe")
    assert demo.series["match by tokens"] == [pytest.approx(Point("continued", 70.0, 70.0, 70.0))]
    assert bpe.series["match by tokens"] == [pytest.approx(Point("continued", 80.0, 80.0, 80.0))]
    assert demo.series["match by text"] == [pytest.approx(Point("continued", 90.0, 90.0, 90.0))]
    assert command.plots({"rows": []}) == []


@pytest.mark.slow
async def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    await command.main(["continued", "reasoning"], 1, [0.01], 0, "prefix-test")
    figures = json.loads((tmp_path / "prefix-test.json").read_text())["figures"]
    assert [(row["tokenizer"], row["scenario"]) for row in figures["rows"]] == [
        (tokenizer, scenario) for tokenizer in ("demo", "bpe-8192") for scenario in ("continued", "reasoning")
    ]
    assert all(row["turns"] == 5 for row in figures["rows"])
    table = command.tables(figures)[0]
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert "continued: tokens saved, text over tokens" in capsys.readouterr().out
