"""How a worker finds out whether it shares the store's disk: a file that it must find, and one that the store must."""

import os
import secrets
from pathlib import Path

from agentmem.errors import InvalidArgument
from cache_service.files import DataDirectory, open_private, open_regular

INSTANCE_BYTES = 32


class Probe:
    """This process's random name, and the file in the data directory that holds it. All methods block."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self.instance = secrets.token_bytes(INSTANCE_BYTES)
        self.path = directory.root / "probe"

    def place(self) -> None:
        """Write the file, in place of the last process's. The directory must be this process's."""
        self.path.unlink(missing_ok=True)
        with open_private(self.path) as file:
            file.write(self.instance)

    def sees(self, witness: Path) -> bool:
        """Whether a file that a worker wrote in staging/ is there, readable to this process, and holds the name.

        Raises InvalidArgument for a path elsewhere.
        """
        if not self._directory.is_staged(witness):
            raise InvalidArgument("witness_path", f"must be a file in {self._directory.staging}")
        try:
            descriptor = open_regular(witness)
        except OSError:
            return False
        try:
            return os.pread(descriptor, INSTANCE_BYTES + 1, 0) == self.instance
        finally:
            os.close(descriptor)
