"""Tests of the commands that look for models and fetch them."""
