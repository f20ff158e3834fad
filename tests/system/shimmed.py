"""A service under the shim of tests/faults: `python -m tests.system.shimmed MODULE FLAGS…`.

The variables SHIM and SHIM_CONTROL name the library and the control file.
"""

import os
import sys


def main() -> None:
    environment = {**os.environ, "LD_PRELOAD": os.environ["SHIM"], "AGENTMEM_FAULTS": os.environ["SHIM_CONTROL"]}
    os.execve(sys.executable, [sys.executable, "-m", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
