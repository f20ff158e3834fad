"""Work on a data directory that is not served: check and mend it, measure it, recover from it.

`check` runs the checks of `database`, `ledgers`, `files` and `warm_index`, and mends; `findings` are its results;
`adoption` finds owners of files without rows; `usage` adds up bytes. `recover` copies what is readable: `transfer`
copies rows around damaged pages, `states` finds the newest intact state of each agent. `commands` is the command line.
"""
