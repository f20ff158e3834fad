"""`agentmem run FILE` and `agentmem workflows`.

run.py      `agentmem run`: the file, the stream of events through lost connections, how it ends
view.py     events as lines; pure
runs.py     `agentmem workflows`: the runs that there are and were
"""

from typing import Final

from gateway.cli.groups import Lazy

COMMANDS: Final = (
    Lazy("run", "gateway.workflows.cli.run:run", "Run a workflow, and show who speaks, what, and what memory gave."),
    Lazy("workflows", "gateway.workflows.cli.runs:workflows", "Show, cancel or delete runs of workflows."),
)
