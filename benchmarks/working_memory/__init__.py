"""What agents still know in late phases of a workflow: `command` is the benchmark.

`scenarios` makes the workflows, `runs` plays them on a live stack, `text` without memory, `scores` counts.
"""
