"""What no schema can say about a workflow: names that are there, phases that can take place, who may know what."""

from collections.abc import Iterator, Mapping

from gateway.workflows.audience import present, speakers
from gateway.workflows.definition.phase_checks import phase_problems
from gateway.workflows.definition.problem import Problem
from gateway.workflows.definition.schema import MAX_TURNS, Definition, Phase
from gateway.workflows.definition.text_checks import text_problems


def problems(definition: Definition, variables: Mapping[str, str]) -> list[Problem]:
    """All that is wrong with `definition`, apart from its variables, whose final texts are `variables`."""
    return [
        *_agent_problems(definition),
        *(problem for index in range(len(definition.phases)) for problem in phase_problems(definition, index)),
        *_phase_names(definition.phases),
        *_turns(definition.phases),
        *text_problems(definition, variables),
    ]


def turns(phase: Phase) -> int:
    """How many turns `phase` has, if nothing stops it early."""
    a_round = 2 * (len(phase.agents) - 1) if phase.topology == "hub" else len(speakers(phase))
    return a_round * phase.rounds


def _agent_problems(definition: Definition) -> Iterator[Problem]:
    there = {name for phase in definition.phases for name in present(phase)}
    memories: dict[tuple[str, str | None], str] = {}
    for name, agent in definition.agents.items():
        if name not in there:
            yield Problem(("agents", name), "takes part in no phase", of_key=True)
        if not agent.persist:
            if agent.id is not None:
                yield Problem(("agents", name, "id"), "names a memory, but the agent does not persist")
            continue
        memory = (agent.id or name, agent.model or definition.defaults.model)
        if memory in memories:
            yield Problem(("agents", name, "id"), f"is the memory of {memories[memory]} already")
        memories.setdefault(memory, name)


def _phase_names(phases: list[Phase]) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, phase in enumerate(phases):
        if phase.name in seen:
            yield Problem(("phases", index, "name"), "is the name of an earlier phase")
        seen.add(phase.name)


def _turns(phases: list[Phase]) -> Iterator[Problem]:
    total = 0
    for index, phase in enumerate(phases):
        total += turns(phase)
        if total > MAX_TURNS:
            problem = f"makes it {total} turns up to here; a run has at most {MAX_TURNS}"
            yield Problem(("phases", index, "rounds"), problem)
            return
