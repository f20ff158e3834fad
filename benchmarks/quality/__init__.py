"""What quantized KV costs in quality, through the engine that serves: perplexity and recall, with intervals.

`command` is the program, `models` measures one model, `texts` are what it reads, `engine` runs them as turns over
quantized KV and without it, `scores` compares the two, and `report` says what was found.
"""
