"""The gRPC contract: the protos as they are."""

from pathlib import Path
from typing import Final

PROTOS: Final = tuple(sorted((Path(__file__).parents[2] / "protos" / "agentmem" / "v1").glob("*.proto")))


def page() -> str:
    return "\n".join(f"## {path.name}\n\n```proto\n{path.read_text(encoding='utf-8')}```\n" for path in PROTOS)
