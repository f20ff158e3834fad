"""RESULTS.md and its plots, made from what the benchmarks wrote.

`command` is the program, `document` puts the text together, `paper` has the paper's own figures, `plots` draws.
"""
