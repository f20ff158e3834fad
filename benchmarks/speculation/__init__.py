"""Answers with drafts of their next tokens, and without.

requests.py   what is asked: quotations, edits, prose
command.py    `agentmem bench speculation`
"""
