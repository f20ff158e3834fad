import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from agentmem.limits import SAMPLING
from inference_service.domain import SAMPLING_OF_MODELS, Sampling

log = logging.getLogger(__name__)

FILE: Final = "generation_config.json"
_NEUTRAL: Final = Sampling(temperature=1.0)
"""The model's own probabilities."""


def sampling_defaults(directory: Path) -> Sampling:
    """`do_sample: false` is greedy; numbers out of bounds are ignored."""
    try:
        found = json.loads((directory / FILE).read_text())
    except FileNotFoundError:
        return _NEUTRAL
    except (OSError, ValueError) as error:
        log.warning("%s is not read: %s", directory / FILE, error)
        return _NEUTRAL
    given: dict[str, Any] = {}
    for name in SAMPLING_OF_MODELS if isinstance(found, dict) else ():
        value = found.get(name)
        if isinstance(value, bool) or value is None:
            continue
        if value not in SAMPLING[name]:
            log.warning("%s: %s must be %s", directory / FILE, name, SAMPLING[name])
            continue
        given[name] = int(value) if name == "top_k" else float(value)
    if isinstance(found, dict) and found.get("do_sample") is False:
        given["temperature"] = 0.0
    return replace(_NEUTRAL, **given)
