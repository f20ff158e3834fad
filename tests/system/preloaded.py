"""Imports of the services, loaded once in the server that forks them: most of a start's time.

gRPC and MLX may be forked as long as nothing but their import has been done: neither has threads, channels or streams
before it is first used, which is checked here. A service itself is run in the fork, after its environment is set.
"""

import gc
import importlib
import os
import sys

import click.core
import google.protobuf.any_pb2
import google.protobuf.json_format
import huggingface_hub
import jinja2
import llguidance
import numpy as np
import obstore
import prometheus_client
import pydantic_settings
import rich.console
import rich.table
import safetensors.numpy
import starlette.applications
import tokenizers
import transformers
import transformers.tokenization_utils_base
import uvicorn
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from gateway.rings import of_rings

FOUND = (
    *(click, google, huggingface_hub, jinja2, llguidance, np, obstore, prometheus_client, pydantic_settings),
    *(rich, safetensors, starlette, tokenizers, transformers, uvicorn),
    *(AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast),
)
"""Names of transformers are loaded when they are asked for."""


def _threads() -> int:
    return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 0


_before = _threads()
if "grpc" in sys.modules or "mlx" in sys.modules:
    raise RuntimeError("gRPC or MLX are imported already: whether they have threads cannot be seen any more")
for module in ("cache_service.process", "gateway.app", "inference_service.process"):
    importlib.import_module(module)
list(of_rings("attach"))
if _threads() != _before:
    raise RuntimeError("an import has started a thread, which a fork would not have; take out what imports it")
gc.collect()
gc.freeze()
