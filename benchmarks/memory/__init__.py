"""KV memory by model and length: by arithmetic from published configurations, and measured on real caches and pools.

arithmetic.py   bytes and agents, from a published config.json and the rules of the design alone
measuring.py    the same of real caches and blocks, and of a real pool that is filled until it is full
command.py      both side by side, and whether they agree
"""
