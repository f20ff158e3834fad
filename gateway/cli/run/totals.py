"""What memory saved a run: sums over its steps, and the line that tells them."""

from dataclasses import dataclass

from gateway.cli.run.state import Run
from gateway.cli.run.transcript import state_name


@dataclass(frozen=True)
class Totals:
    """Counts of a run. `prompt` is what a server without memory would have prefilled: each step's whole ledger."""

    turns: int
    listenings: int
    prompt: int
    reused: int
    prefilled: int
    again: int
    generated: int
    seconds: float
    replayed: int

    @property
    def saved(self) -> float:
        """The share of the prompts' tokens that was not prefilled; 0 to 1."""
        return self.reused / self.prompt if self.prompt else 0.0


def add_up(run: Run) -> Totals:
    """The sums of a run."""
    steps = list(run.steps())
    turns = sum(step.spoke for step in steps)
    return Totals(
        turns=turns,
        listenings=len(steps) - turns,
        prompt=sum(step.told.usage.prompt_tokens for step in steps),
        reused=sum(step.reused for step in steps),
        prefilled=sum(step.prefilled for step in steps),
        again=sum(step.again for step in steps),
        generated=sum(step.told.usage.completion_tokens for step in steps),
        seconds=run.seconds,
        replayed=sum(step.told.replayed for step in steps),
    )


def totals_line(run: Run) -> str:
    """How the run ended, and what was prefilled: "succeeded: 25 turns in 3.1 s · prefilled 900 of 10,400 tokens…"."""
    sums = add_up(run)
    parts = [f"{state_name(run.workflow)}: {sums.turns} turn{'s' * (sums.turns != 1)} in {sums.seconds:.1f} s"]
    if sums.prompt:
        parts.append(
            f"prefilled {sums.prefilled:,} of {sums.prompt:,} prompt tokens, {sums.saved:.0%} came from memory"
        )
        parts.append(f"{sums.again:,} of the ledgers computed again")
    if sums.replayed:
        parts.append(f"{sums.replayed} replayed")
    return " · ".join(parts)
