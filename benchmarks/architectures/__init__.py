"""What quantized KV costs models of every architecture, trained in minutes, through the engine that serves: recall.

`command` is the program, `models` measures one model, `texts` are what it reads, `engine` runs them as turns over
quantized KV and without it, `scores` compares the two, and `report` says what was found.
"""
