"""Workflow files: their schema, their parser, and checks of all that no schema can say."""
