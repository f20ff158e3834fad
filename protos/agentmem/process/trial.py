"""`python -m agentmem.process.trial MODULE:CLASS [FLAGS]`: load a service's settings, and write its address."""

import importlib
import sys
from typing import Final

from agentmem.process.settings import SettingsError, load

REFUSED: Final = 2


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    try:
        settings = load(getattr(importlib.import_module(module), name), sys.argv[2:])
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(REFUSED)
    sys.stdout.write(settings.address)


if __name__ == "__main__":
    main()
