"""The worker's limit of open files is its user's."""

import resource
import subprocess
import sys

PROGRAM = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1500, 3000))
{first}import mlx_lm
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits(first: str) -> list[int]:
    program = PROGRAM.format(first=first)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [int(limit) for limit in done.stdout.split()]


def test_mlx_lm_does_not_change_it() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 3000
    assert limits("import inference_service\n") == [1500, 3000]
