"""Answers with drafts of their next tokens, and without."""
