"""mlx-lm lowers the limit of open files of each process that imports it."""

import resource
from typing import Final

_BY_MLX_LM: Final = 2048, 4096


def keep_limit() -> None:
    """Have a later import of mlx-lm keep the limit."""
    set_limit = resource.setrlimit

    def setrlimit(what: int, limits: tuple[int, int]) -> None:
        if (what, limits) != (resource.RLIMIT_NOFILE, _BY_MLX_LM):
            set_limit(what, limits)

    resource.setrlimit = setrlimit
