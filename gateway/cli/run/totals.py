"""What memory saved a run: sums over its steps, and the line that tells them."""

from dataclasses import dataclass

from gateway.cli.run.state import Run
from gateway.cli.run.transcript import state_name
from gateway.cli.text import counted


@dataclass(frozen=True)
class Totals:
    """Counts of a run: of steps, of tokens, and the seconds from its first event to its last.

    `resent` is what a server without memory prefills: the whole ledger for each turn and each note. Whoever only
    listens costs nothing there, so `prefilled`, which has all steps, may be more where many hear and few speak.
    """

    turns: int
    notes: int
    listenings: int
    resent: int
    prefilled: int
    reused: int
    again: int
    generated: int
    replayed: int
    seconds: float

    @property
    def saved(self) -> int:
        """Tokens that were not prefilled, against sending each turn's ledger again."""
        return self.resent - self.prefilled

    @property
    def share(self) -> float:
        """`saved` as a share of `resent`; at most 1, and 0 where nothing was said."""
        return self.saved / self.resent if self.resent else 0.0


def add_up(run: Run) -> Totals:
    """The sums of a run."""
    steps = list(run.steps())
    said = [step for step in steps if step.spoke or step.text]
    turns = sum(step.spoke for step in steps)
    return Totals(
        turns=turns,
        notes=len(said) - turns,
        listenings=len(steps) - len(said),
        resent=sum(step.told.usage.prompt_tokens for step in said),
        prefilled=sum(step.prefilled for step in steps),
        reused=sum(step.reused for step in steps),
        again=sum(step.again for step in steps),
        generated=sum(step.told.usage.completion_tokens for step in steps),
        replayed=sum(step.told.replayed for step in steps),
        seconds=run.seconds,
    )


def totals_line(run: Run) -> str:
    """How the run ended, and what was prefilled: "succeeded: 25 turns in 3.1 s · prefilled 900 tokens, …"."""
    sums = add_up(run)
    parts = [f"{state_name(run.workflow)}: {counted(sums.turns, 'turn')} in {sums.seconds:.1f} s"]
    if sums.resent:
        parts.append(
            f"prefilled {sums.prefilled:,} tokens, where sending each ledger again takes {sums.resent:,}: "
            f"{sums.share:.0%} saved"
        )
        parts.append(f"{sums.again:,} computed another time")
    if sums.replayed:
        parts.append(f"{sums.replayed:,} replayed")
    return " · ".join(parts)
