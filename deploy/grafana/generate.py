"""Writes dashboards/*.json: `python -m deploy.grafana.generate` in the repository's root."""

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.agents import agents
from deploy.grafana.cache import cache
from deploy.grafana.cluster import cluster
from deploy.grafana.overview import overview
from deploy.grafana.services import services

FOLDER = Path(__file__).parent / "dashboards"


def files() -> dict[Path, str]:
    """What there is to write."""
    boards = {
        "overview": overview(),
        "cache": cache(),
        "agents": agents(),
        "services": services(),
        "cluster": cluster(),
    }
    return {
        FOLDER / f"{name}.json": json.dumps(board.build(), cls=JSONEncoder, indent=1) + "\n"
        for name, board in boards.items()
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
