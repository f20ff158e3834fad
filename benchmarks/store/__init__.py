"""The cache store by itself: `command` is the benchmark, the rest its processes, agents and files."""
