# /// script
# dependencies = ["matplotlib>=3.10"]
# ///
"""Draws bits.svg beside it: divergence over bits, of ours, llama.cpp's and mlx-lm's formats.

uv run docs/guides/images/bits.py

It reads committed results alone; matplotlib is no dependency of the project.
"""

import json
from pathlib import Path
from typing import Any, Final

import matplotlib.pyplot as plt

_ROOT: Final = Path(__file__).resolve().parents[3]
_PANELS: Final = {
    "SmolLM2-135M-Instruct": "quality-beside-llama-cpp-cpu",
    "Gemma 3 270M (base)": "quality-gemma3-beside-llama-cpp-cpu",
}
_OTHERS: Final = {"llama.cpp": ("s", "#b35806"), "mlx-lm": ("^", "#7570b3")}
_OURS: Final = ("o", "#01665e")
_LIMIT: Final = 0.02
"""Nats that `auto` accepts."""


def _draw(axes: Any, title: str, result: str) -> None:
    found = json.loads((_ROOT / "benchmarks" / "results" / f"{result}.json").read_text())["figures"]["variants"]
    families: dict[str, list[tuple[float, float, str]]] = {}
    for name, each in found.items():
        family, _, label = name.rpartition(", ")
        if name != "4 rotated":
            families.setdefault(family, []).append((each["bits"], each["divergence"]["value"], label))
    for family, points in families.items():
        marker, colour = _OTHERS.get(family, _OURS)
        bits, nats, labels = zip(*sorted(points), strict=True)
        axes.plot(bits, nats, marker, color=colour, label=family or "Agentmem", markersize=6)
        for x, y, label in zip(bits, nats, labels, strict=True):
            axes.annotate(label, (x, y), xytext=(6, 3), textcoords="offset points", fontsize=8, color=colour)
    axes.axhline(_LIMIT, color="grey", linewidth=0.8, linestyle="--")
    axes.annotate("auto accepts", (8.6, _LIMIT), xytext=(0, 3), textcoords="offset points", ha="right", fontsize=8)
    axes.set(title=title, xlabel="bits of an element with its scales", yscale="log", xlim=(3.7, 9.4))
    axes.grid(visible=True, which="major", linewidth=0.3)


def main() -> None:
    plt.rcParams |= {"svg.hashsalt": "bits", "svg.fonttype": "none", "font.size": 10}
    figure, panels = plt.subplots(1, len(_PANELS), figsize=(11, 4.4), sharey=True, layout="constrained")
    for axes, (title, result) in zip(panels, _PANELS.items(), strict=True):
        _draw(axes, title, result)
    panels[0].set_ylabel("KL divergence from unquantized KV (nats)")
    panels[0].legend()
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
