"""Whether models may be fetched over the network: the setting `offline`, and one variable for all processes."""

import os
from typing import Annotated, Final

from pydantic import AfterValidator

VARIABLE: Final = "AGENTMEM_OFFLINE"
"""The environment variable that forbids every process of Agentmem the network for models, whatever its settings say."""

_WORDS: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "": False,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def by_environment() -> bool:
    """Whether the variable forbids it. Raises ValueError for a word that is neither yes nor no."""
    word = os.environ.get(VARIABLE, "")
    try:
        return _WORDS[word.strip().lower()]
    except KeyError:
        raise ValueError(f"{VARIABLE} is {word!r}; set it to 1, true or yes, or to 0, false or no") from None


def _strictest(offline: bool) -> bool:
    return by_environment() or offline


Offline = Annotated[bool, AfterValidator(_strictest)]
"""A setting that the variable can only make true. Its field needs `validate_default=True`."""
