"""What an operator does to a data directory without serving it: check and mend it, weigh it, recover from it.

`database` opens one, and says whether it is whole; `findings` is what a check says; `ledgers` and `files` look for
faults; `check` runs them, and mends what can be mended; `warm_index` says whether warm.db can be read; `usage` adds up
bytes. `adoption` finds whose a file is without its row.

`recover` copies what is readable of a damaged directory: `transfer` copies rows around damaged pages, `states` finds
the newest state of each agent that holds together. `commands` is the command line.
"""
