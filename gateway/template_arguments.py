"""Arguments for the model's chat template, in the contract's words."""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from agentmem.errors import InvalidArgument

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_WITHOUT_THINKING: Final = {"enable_thinking": False}
"""How most templates take that the model must not think."""


def template_arguments(effort: Effort | None, given: Mapping[str, Any] | None = None) -> str | None:
    """How much the model is to think, and what the caller gives the template itself, as JSON; None for nothing.

    Templates that know `reasoning_effort` put it in words, and those that know `enable_thinking` follow "none"; others
    ignore both. Raises InvalidArgument where the two contradict each other.
    """
    arguments: dict[str, Any] = dict(given or {})
    if effort is not None:
        if arguments.get("reasoning_effort", effort) != effort:
            raise InvalidArgument("reasoning_effort", "contradicts chat_template_kwargs; give one of them")
        arguments = {**(_WITHOUT_THINKING if effort == "none" else {}), **arguments, "reasoning_effort": effort}
    return json.dumps(arguments, ensure_ascii=False) if arguments else None
