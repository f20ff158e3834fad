"""Tests mirror the packages: `tests.gateway` tests `gateway`, and so on."""

import os

# A program that is started as another user is forked, and a child with gRPC's threads in it may end before it becomes
# that program. gRPC reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
