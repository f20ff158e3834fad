"""Whether the long forms of tests are wanted: every point, all examples, ten thousand of what are hundreds in CI."""

import os

FULL = bool(os.environ.get("AGENTMEM_FULL_MATRIX"))
