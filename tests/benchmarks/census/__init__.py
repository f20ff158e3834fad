"""The census of model types."""
