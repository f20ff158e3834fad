"""A run whose agents say what a page, or Markdown, could take for something else."""

from __future__ import annotations

from agentmem.v1 import workflow_pb2

from .events import ABSENT, NEW, heard, listened, numbered, phase, speaking, spoke, step, usage, workflow

SAID = (
    "<script>alert(1)</script>",
    "**bold** _it_ `code` [link](http://evil.example) ![x](http://evil.example/x.png)",
    "| a | b |",
    "# title\n- item\n1. one\n    code\n> quote\n---\n```\nfence",
    "<!-- ]]> --> &lt; &amp; {{ 7 * 7 }} {% raw %}",
    "</p></div><svg onload=alert(1)>",
    "https://evil.example/x www.evil.example",
    "\x1b[2J\u202e$x^2$ ~gone~ \\",
)

HOSTILE = numbered(
    {"started": workflow_pb2.WorkflowStarted(workflow=workflow())},
    phase("p", "<i>", "whisper", "a", "b"),
    *(
        fields
        for text in SAID
        for fields in (
            speaking("a", "p"),
            spoke("a", text, "p", step(NEW, usage(10, said=1), ABSENT)),
            heard("a", "<b>|b", channel="private", bystanders=("*c*",)),
        )
    ),
    listened("b", "p", step(NEW, usage(10, said=1), ABSENT), note="<script>note</script>"),
    {
        "phase_outcome": workflow_pb2.PhaseOutcome(
            phase="p", rounds=1, outcome_json='{"<script>": ["<script>", {"|": "**x**"}]}'
        )
    },
    {"finished": workflow_pb2.WorkflowFinished(workflow=workflow(error="<script>error</script>"))},
)
