"""Tests of the worker. Tokenizers are real ones, trained on a little text."""
