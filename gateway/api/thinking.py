"""How much a model is to think, as arguments of its chat template."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from gateway.api.validation import Body, Forgiving, JsonObject

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_WITHOUT_THINKING: Final = {"enable_thinking": False}
"""Most templates take that as: the model must not think."""


def template_arguments(effort: Effort | None, given: Mapping[str, Any] | None = None) -> str | None:
    """Templates know `reasoning_effort`, or `enable_thinking`, or neither."""
    arguments: dict[str, Any] = dict(given or {})
    if effort is not None:
        arguments = {**(_WITHOUT_THINKING if effort == "none" else {}), **arguments, "reasoning_effort": effort}
    return json.dumps(arguments, ensure_ascii=False, sort_keys=True) if arguments else None


class Switch(Forgiving):
    """Nothing holds the model to a budget."""

    type: Literal["enabled", "adaptive", "auto", "disabled"]

    @property
    def thinks(self) -> bool:
        return self.type != "disabled"


class ReasoningConfig(Forgiving):
    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: Annotated[int, Field(description="no effect: nothing holds the model to it")] | None = None


class Thinks(Body):
    reasoning_effort: Effort | None = None
    reasoning: ReasoningConfig | None = None
    enable_thinking: bool | None = None
    thinking: Switch | bool | None = None
    chat_template_kwargs: JsonObject | None = None

    @property
    def effort(self) -> Effort | None:
        return (self.reasoning and self.reasoning.effort) or self.reasoning_effort

    def template_arguments(self) -> str | None:
        """The last one given wins: chat_template_kwargs, enable_thinking, thinking, reasoning."""
        arguments: dict[str, Any] = dict(self.chat_template_kwargs or {})
        thinking = self.thinking.thinks if isinstance(self.thinking, Switch) else self.thinking
        for thinks in (self.enable_thinking, thinking, self.reasoning and self.reasoning.enabled):
            if thinks is not None:
                arguments["enable_thinking"] = thinks
        return template_arguments(self.effort, arguments)
