"""Generates the stubs beside their protos: `python protos/generate.py` (or `make proto`).

The generator is pinned in pyproject.toml, because generated code demands a runtime at least as new as itself.
`--out DIR` writes elsewhere, for the test that regenerating changes nothing.
"""

import argparse
import importlib.resources
import sys
import sysconfig
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent


def generate(out: Path) -> int:
    """Write `*_pb2.py`, `*_pb2.pyi`, `*_pb2_grpc.py` and `*_pb2_grpc.pyi` for every proto under `out`; exit status."""
    scripts = Path(sysconfig.get_path("scripts"))
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("agentmem/**/*.proto"))
    return int(
        protoc.main(
            [
                "protoc",
                f"-I{PROTOS}",
                f"-I{well_known}",
                *(f"--plugin={name}={scripts / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")),
                f"--python_out={out}",
                f"--grpc_python_out={out}",
                f"--mypy_out=quiet:{out}",
                f"--mypy_grpc_out=quiet,generate_concrete_servicer_stubs:{out}",
                *sources,
            ]
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PROTOS)
    sys.exit(generate(parser.parse_args().out))
