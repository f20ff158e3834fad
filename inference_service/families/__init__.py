"""Quirks of model families, as tables: a new family is a row here. Pure data.

chats.py     reasoning, calls of tools, templates
networks.py  modules of mlx-lm: which are refused, run alone, or keep latents
"""
