"""Workflow definitions for tests."""

from typing import Any

from gateway.workflows.definition.schema import Definition, Phase


def definition(*phases: dict[str, Any], **arguments: Any) -> Definition:
    """A definition of phases; all agents that they name take part, with nothing said of them."""
    named = {name for phase in phases for name in (*phase["agents"], *phase.get("listeners", ()))}
    agents = {**{name: {} for name in sorted(named)}, **arguments.pop("agents", {})}
    numbered = [{"name": f"p{number}", **phase} for number, phase in enumerate(phases, 1)]
    return Definition.model_validate({"workflow": "test", "agents": agents, "phases": numbered, **arguments})


def phase(**arguments: Any) -> Phase:
    return Phase.model_validate({"name": "p1", **arguments})
