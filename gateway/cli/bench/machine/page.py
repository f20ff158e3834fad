"""The page: what was found, as Markdown for people. Pure."""

from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any, Final

from agentmem.distribution import NAME
from agentmem.load_stages import LoadStage
from agentmem.sizes import binary_size, byte_size
from gateway.cli.bench.machine.comparison import Found, compared, parts_of, table
from gateway.cli.bench.machine.plan import LENGTHS, OURS, THEIRS

_TRACKERS: Final = ("issues", "bug tracker", "tracker", "bugs")
_FP16_BYTES: Final = 2
_BUSY: Final = 0.5
"""Load of each core."""

_LOG_LINES: Final = 5
_SHOWN: Final = ("backend", "matrix products", "disk speed", "file system", "BLAS")
"""Findings of `agentmem doctor` that are shown if they are well, too."""

_GOOD_SHARE: Final = 0.9
"""Share of a next turn's prompt that memory has; the rest is the turn's own text."""


def page(found: Found) -> str:
    parts = (_title(found), *_sections(found), _where_to())
    return "\n".join(line.rstrip() for part in parts for line in (*part, "")) + "\n"


def head(text: str) -> str:
    """Return the page up to its second section."""
    return "\n## ".join(text.split("\n## ")[:2]).rstrip() + "\n"


def _gpu(model: Found) -> str:
    device = str(model.get("device", "")).partition(";")[0]
    return device if device.startswith("NVIDIA") else ""


def _title(found: Found) -> Iterator[str]:
    machine, versions, model = found["machine"], found["versions"], found["model"]
    yield f"# Agentmem on {_gpu(model) or machine['chip']}, {binary_size(machine['memory_bytes'])}"
    yield ""
    packages = ", ".join(f"{name} {versions[name]}" for name in ("mlx", "mlx-lm") if name in versions)
    yield f"Agentmem {versions['agentmem']}, {packages}, Python {versions['python']}; {found['date']}."
    yield ""
    about = [f"{model[name]}" for name in ("architecture", "dtype") if model.get(name)]
    if "weight_bytes" in model:
        about += [f"weights {byte_size(model['weight_bytes'])}", f"KV in {model['kv_bits']} bits"]
        about += [f"context {model['context_length']:,}"]
    yield f"Model: {', '.join((model['name'], *about))}."
    if machine.get("load_before", 0) > machine.get("cores", 1) * _BUSY:
        yield ""
        yield f"**Other programs computed when this began (load {machine['load_before']:.1f}): its figures vary.**"
    if model.get("is_demo"):
        yield ""
        yield (
            "This is the bundled demo model of 5.5 million parameters: its figures say little about a model of use. "
            "`agentmem bench machine --model NAME` measures yours."
        )
    if found.get("stopped"):
        yield ""
        yield "**Stopped by the user: parts are missing.**"
    if running := found.get("running"):
        yield ""
        yield f"**Not complete: {_named(running)} was running when this was written.**"


def _sections(found: Found) -> Iterator[Iterable[str]]:
    yield ("## Beside mlx-lm", "", *compared(found))
    yield ("## The machine", "", *_machine(found))
    yield ("## Starts", "", *_starts(found))
    if "attention_paths" in found["model"]:
        yield ("## Paths and bits", "", *_paths(found["model"]))
        yield ("## Capacity", "", *_capacity(found["model"]))
    yield ("## Failed, or left out", "", *_missing(found))


def _machine(found: Found) -> Iterator[str]:
    machine, memories = found["machine"], [each["memory"] for each in found["parts"] if "memory" in each]
    rows = [(name.removesuffix("_bytes").replace("_", " "), _shown(name, value)) for name, value in machine.items()]
    if memories:
        rows.append(("least memory available", byte_size(min(each["available"] for each in memories))))
        swap = [each["swap_used"] for each in memories]
        rows.append(("swap used, at first and at most", f"{byte_size(swap[0])}, {byte_size(max(swap))}"))
        if wired := [each["wired"] for each in memories if "wired" in each]:
            rows.append(("most memory wired", byte_size(max(wired))))
    rows += [(name, value) for name, value in found.get("settings", {}).items()]
    rows += [(name, version) for name, version in found["versions"].items()]
    yield from table(("", ""), rows)
    yield ""
    for finding in (each for part in parts_of(found, "doctor", "") for each in part.get("findings", ())):
        state = "" if finding["state"] == "ok" else f" ({finding['state']})"
        if state or finding["check"] in _SHOWN:
            yield f"- {finding['check']}{state}: {finding['found']}"


def _shown(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return binary_size(value)
    return f"{value:.1f}" if isinstance(value, float) else f"{value}"


def _starts(found: Found) -> Iterator[str]:
    rows = []
    for number, name in enumerate(("first", "later")):
        for server in (OURS, THEIRS):
            for part in parts_of(found, "start", server)[number : number + 1]:
                if part:
                    times = (f"{part[each]:.1f} s" if each in part else "" for each in ("ready", "first_answer"))
                    rows.append((f"{server}, {name}", *times, _stages(part)))
    for part in (each for each in parts_of(found, "model", OURS) if each.get("stages")):
        rows.append(("new model, until it is measured", f"{part['seconds']:.1f} s", "", _stages(part)))
    yield from table(("", "ready", "first answer", "of it"), rows)


_STAGES: Final = {
    **{"process": "its processes", "loaded": "the gateway", "serving": "serving"},
    LoadStage.FETCH.value: "opening its files",
}


def _stages(part: Found) -> str:
    words = {each.value: each.words for each in LoadStage} | _STAGES
    return ", ".join(f"{words.get(name, name)} {seconds:.1f} s" for name, seconds in part.get("stages", {}).items())


def _paths(model: Found) -> Iterator[str]:
    yield f"KV in {model['kv_bits']} bits, {model['kv_scheme']}: {model['kv_bits_reason'] or 'no reason given'}."
    if model.get("unmeasured"):
        yield from ("", "**The model was not measured in time: figures are of a model that is still new.**")
    yield ""
    paths = model["attention_paths"]
    rows = [(each["phase"], each["path"], f"{each['relative_error']:.2g}", each["note"]) for each in paths]
    yield from table(("phase", "path", "error in its self-test", "where, and why"), rows)
    if measured := model["kv_bits_measured"]:
        yield ""
        yield from table(
            ("KV bits", "divergence, nats", "99th percentile", "bytes a token", "good"),
            ((each["kv_bits"], *(f"{each[name]:.4g}" if isinstance(each[name], float) else f"{each[name]}" for name in
              ("kl_divergence", "kl_divergence_p99")), f"{each['bytes_per_token']:,}", "yes" if each["good"] else "no")
             for each in measured),
        )  # fmt: skip


def _capacity(model: Found) -> Iterator[str]:
    memory = model["memory"]
    names = ("device", "usable", "weight", "activation", "pool", "batch")
    rows = [(f"{name} memory", byte_size(memory[f"{name}_bytes"])) for name in names]
    plain = model["full_layers"] * model["kv_heads"] * (model["k_head_dim"] + model["v_head_dim"]) * _FP16_BYTES
    token = model["kv_bytes_per_token"]
    share = f", {token / plain:.2f} of 16 bits" if plain else ""
    rows.append(("KV of a token", f"{byte_size(token)}{share}"))
    rows += [
        (f"agents of {length:,} tokens in memory", f"{agents:,}")
        for length, agents in ((LENGTHS[1], memory["agents_4k"]), (LENGTHS[2], memory["pool_tokens"] // LENGTHS[2]))
        if length <= model["context_length"]
    ]
    yield from table(("", ""), rows)


def _missing(found: Found) -> Iterator[str]:
    rounds: dict[tuple[str, str], list[str]] = {}
    for part in found["parts"]:
        for about, why in _left_out(part):
            named = ", ".join(filter(None, (part["server"], part["part"], about)))
            rounds.setdefault((named, why.partition(":")[0]), []).append(why)
    lines = [f"- {named}: {whys[0]}{' (in both rounds)' * (len(whys) > 1)}" for (named, _), whys in rounds.items()]
    for server, said in found.get("warnings", {}).items():
        lines += [f"- {server}'s log: {line}" for line in said[-_LOG_LINES:]]
    yield from lines or ["Nothing."]


def _left_out(part: Found) -> Iterator[tuple[str, str]]:
    """Yield of what in a part, and why."""
    for name in ("error", "skipped"):
        if name in part:
            yield part.get("during", ""), f"{name}: {' / '.join(part[name].splitlines())}"
    for size, each in part.get("found", {}).items():
        if not size.isdigit():
            continue
        about = f"{int(size):,} {'tokens' if int(size) in LENGTHS else 'at once'}"
        if "skipped" in each:
            yield about, f"skipped: {each['skipped']}"
        for note in dict.fromkeys((*each.get("notes", ()), *_lost(each.get("samples", ())))):
            yield about, note


def _lost(samples: Iterable[Found]) -> Iterator[str]:
    """Yield what makes a next turn another measurement than its name says."""
    for sample in samples:
        for name in ("warm", "hot"):
            reused = sample.get(f"{name}_reused", {})
            if reused.get("reused") is not None and reused["reused"] < _GOOD_SHARE * reused["of"]:
                yield f"a next turn ({name}) reused only {reused['reused'] / reused['of']:.0%} of its prompt"
            if (tiers := reused.get("tiers")) and tiers.keys() != {name}:
                yield f"a next turn ({name}) took its memory from {', '.join(tiers)}"


def _named(part: Found) -> str:
    return ", ".join(filter(None, (part["server"], part["part"], f"round {part['round']}")))


def _where_to() -> Iterator[str]:
    yield "## Send it"
    yield ""
    place = tracker(metadata.metadata(NAME).get_all("Project-URL") or ())
    yield (
        f"Open an issue at {place} with both files, this page and the JSON beside it."
        if place
        else "Send both files, this page and the JSON beside it, to whoever gave you Agentmem."
    ) + " This user's and host's names are taken out, and all but the last parts of paths; read both before."


def tracker(urls: Iterable[str]) -> str:
    """Return where a package's metadata says issues belong, or ""."""
    named = {name.strip().lower(): url.strip() for name, _, url in (each.partition(",") for each in urls)}
    return next((named[name] for name in _TRACKERS if name in named), "")
