"""Candidates for people and machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from agentmem.console import FOLD, LINE, RIGHT, table
from agentmem.sizes import byte_size
from inference_service.engine.device import share_bytes
from inference_service.hub.candidates import RECOMMENDED, Candidate
from inference_service.models.sources import hub_host

_FITS: Final = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "yellow")}


def results(found: Sequence[Candidate]) -> Table:
    columns = {"model": {**FOLD, "min_width": 12}, "download": RIGHT, "memory": RIGHT}
    return table({**columns, "fits": LINE, "4K agents": RIGHT, "note": {**FOLD, "style": "dim"}}, map(_row, found))


def _row(each: Candidate) -> list[str | Text]:
    fits, style = ("not now", "yellow") if each.fits and not each.fits_now else _FITS[each.fits]
    return [
        each.model_id,
        byte_size(each.listing.total) if each.listing else "",
        byte_size(each.fit.needs.fixed_bytes) if each.fit else "",
        Text(fits, style=style),
        f"{each.fit.agents:,}" if each.fit and each.fits else "",
        _note(each),
    ]


def best(found: Sequence[Candidate]) -> Candidate | None:
    """Return the largest that fits with an agent of 4,096 tokens, preferably of RECOMMENDED."""
    fitting = [each for each in found if each.fits and each.fit is not None and each.fit.agents and each.listing]
    recommended = [each for each in fitting if each.model_id.startswith(f"{RECOMMENDED}/")]
    return max(recommended or fitting, key=lambda each: each.listing.total if each.listing else 0, default=None)


def what_fits(candidate: Candidate) -> str:
    if candidate.fit is None:
        return candidate.problem or "what it needs is not known"
    needs, usable = candidate.fit.needs, share_bytes()
    parts = f"weights {byte_size(needs.weight_bytes)}, computing {byte_size(needs.activation_bytes)}"
    if not candidate.fits:
        return candidate.problem
    agents = f"{candidate.fit.agents:,} agents of {candidate.fit.tokens:,} tokens fit hot; {candidate.fit.context}"
    later = "" if candidate.fits_now else "; other processes have that memory now"
    return f"{parts} of the {byte_size(usable)} that models may take; {agents}{later}"


def as_dict(candidate: Candidate) -> dict[str, Any]:
    listing, found = candidate.listing, candidate.fit
    return {
        **asdict(candidate.found),
        "hub": hub_host(),
        "gated": listing.gated if listing else None,
        "total_bytes": listing.total if listing else None,
        "missing_bytes": listing.missing if listing else None,
        "weight_bytes": found.needs.weight_bytes if found else None,
        "activation_bytes": found.needs.activation_bytes if found else None,
        "context_length": found.context_length if found else None,
        "usable_bytes": share_bytes(),
        "agents_4k": found.agents if found else None,
        "fits": candidate.fits,
        "fits_now": candidate.fits_now,
        "problem": candidate.problem,
    }


def _note(candidate: Candidate) -> str:
    listing = candidate.listing
    notes = []
    if candidate.fit and candidate.fits and candidate.fit.context_length < candidate.fit.own_context_length:
        notes.append(candidate.fit.context)
    if listing is not None and not listing.missing:
        notes.append("is here")
    if listing is not None and listing.gated:
        notes.append("gated")
    if candidate.fit is None and candidate.problem:
        about = f"model {candidate.model_id!r}"
        notes.append(candidate.problem.removeprefix(about).lstrip(": "))
    return "; ".join(notes)
