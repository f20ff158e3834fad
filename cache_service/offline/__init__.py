"""Work on a data directory that is not served: `check`, `usage`, `recover`. `commands` is the command line.

`check` runs the checks of `database`, `ledgers` and `files`. `adoption` finds owners of files without
rows. `recover` copies rows around damaged pages (`transfer`), and finds intact `states` of agents.
"""
