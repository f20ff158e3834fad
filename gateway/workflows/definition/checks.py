"""What no schema can say about a workflow: names that are there, phases that can take place, who may know what."""

from collections.abc import Iterator, Mapping

from gateway.workflows.audience import present
from gateway.workflows.definition.extent import turns, works
from gateway.workflows.definition.phase_checks import phase_problems
from gateway.workflows.definition.problem import Problem
from gateway.workflows.definition.schema import MAX_TURNS, MAX_WORKS, Definition, Phase
from gateway.workflows.definition.text_checks import text_problems


def problems(definition: Definition, variables: Mapping[str, str]) -> list[Problem]:
    """All that is wrong with `definition`, apart from its variables, whose final texts are `variables`."""
    phases = [problem for index in range(len(definition.phases)) for problem in phase_problems(definition, index)]
    many = list(_turns(definition.phases))
    return [
        *_agent_problems(definition),
        *phases,
        *_phase_names(definition.phases),
        *many,
        *([] if phases or many else _works(definition)),
        *text_problems(definition, variables),
    ]


def _agent_problems(definition: Definition) -> Iterator[Problem]:
    there = {name for phase in definition.phases for name in present(phase)}
    memories: dict[str, list[tuple[str, str | None]]] = {}
    for name, agent in definition.agents.items():
        if name in ("any", "all"):
            yield Problem(("agents", name), f"has another meaning in `until: {{by: {name}}}`; rename it", of_key=True)
        if name not in there:
            yield Problem(("agents", name), "takes part in no phase", of_key=True)
        if not agent.persist:
            if agent.id is not None:
                yield Problem(("agents", name, "id"), "names a memory, but the agent does not persist")
            continue
        model = agent.model or definition.defaults.model
        others = memories.setdefault(agent.id or name, [])
        for other, its_model in others:
            if model == its_model:
                yield Problem(("agents", name, "id"), f"is the memory of {other} already")
                break
            if model is None or its_model is None:  # the server's default may be the model that the other names
                problem = f"may be the memory of {other}; name the models of both, if they are different"
                yield Problem(("agents", name, "id"), problem)
                break
        others.append((name, model))


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


def _works(definition: Definition) -> Iterator[Problem]:
    counts = works(definition)
    total = sum(counts)
    if total <= MAX_WORKS:
        return
    costly = sorted(range(len(counts)), key=counts.__getitem__, reverse=True)
    most = ", ".join(f"{definition.phases[index].name} {counts[index]}" for index in costly[:3])
    problem = (
        f"makes it {total} turns, listenings and notes (the most in {most}); a run has at most {MAX_WORKS}: have fewer "
        "rounds or agents, or let listeners be silent"
    )
    yield Problem(("phases", costly[0], "rounds"), problem)
