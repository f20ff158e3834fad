"""FULL asks for long forms of tests: every point, all examples, ten thousand of what are hundreds in CI."""

import os

FULL = bool(os.environ.get("AGENTMEM_FULL_MATRIX"))
