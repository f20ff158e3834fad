"""What matching by text saves over matching by tokens, on conversations whose boundaries re-tokenize differently.

passages.py        realistic text: the interpreter's own documentation and sources, and other languages
vocabularies.py    real tokenizers, and answers whose tokens are not those that re-tokenizing them gives
conversations.py   the scenarios, turn by turn
contestants.py     who plays them: the worker's planner with two settings, and the longest common prefix of tokens
command.py         plays all, counts, and says with what confidence
"""
