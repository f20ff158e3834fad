"""RESULTS.md, made from what the benchmarks wrote: `command` is the program, `document` puts the text together."""
