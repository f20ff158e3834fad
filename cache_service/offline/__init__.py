"""What an operator does to a data directory without serving it: check and mend it, weigh it, recover from it.

`database` opens one, and says whether it is whole; `tree` is who stands on which segment; `findings` is what a check
says; `ledgers`, `chains`, `files` and `warm_index` look for faults; `check` runs them, and mends what can be mended;
`usage` adds up bytes. `adoption` finds whose a file is without its row.

`recover` copies what is readable of a damaged directory: `transfer` copies rows around damaged pages, `states` finds
the newest state of each agent that holds together, and `linking` takes over the files that these name, or those of a
lost database. `commands` is the command line.
"""
