"""The limit of open files, which mlx-lm lowers in each process that imports it."""

import resource
from typing import Final

_BY_MLX_LM: Final = 2048, 4096


def keep_limit() -> None:
    """Have a later import of mlx-lm leave this process's limit as it is."""
    set_limit = resource.setrlimit

    def setrlimit(what: int, limits: tuple[int, int]) -> None:
        if (what, limits) != (resource.RLIMIT_NOFILE, _BY_MLX_LM):
            set_limit(what, limits)

    resource.setrlimit = setrlimit
