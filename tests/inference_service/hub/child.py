"""A process that runs the commands when it is told to, a line of JSON each: huggingface_hub reads where the hub is, and
where its cache, when it is imported."""

import json
import os
import sys

from click.testing import CliRunner

from inference_service.hub.commands import main

for line in sys.stdin:
    order = json.loads(line)
    os.environ.update(order["environment"])
    ended = CliRunner().invoke(main, order["arguments"])
    for name in order["environment"]:
        del os.environ[name]
    told = {"status": ended.exit_code, "out": ended.stdout, "err": ended.stderr}
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        told["bug"] = repr(ended.exception)
    print(json.dumps(told), flush=True)  # noqa: T201
