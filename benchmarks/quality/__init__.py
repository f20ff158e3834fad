"""What quantized KV costs a real language model: perplexity, divergence and recall of each format, with intervals.

`command` is the program, `texts` and `chats` are what it reads, `variants` the ways to keep KV, `measuring` runs them
side by side, `figures` sums up, and `report` says what was found.
"""
