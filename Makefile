# Everything from a bare checkout with Python 3.11 or newer: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
UV_VERSION := 0.9.30
MLX_EXTRA ?= $(if $(filter Linux,$(shell uname -s)),--extra cpu)
