"""What services import, but for gRPC, MLX, and ourselves: loaded once in the server that forks them.

Most of a worker's start is transformers, most of the others' pydantic and numpy. gRPC and MLX are not here, nor what
imports them, because neither may be forked once it is imported.
"""

import asyncio
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

FOUND = (
    *(asyncio, click, google, huggingface_hub, jinja2, llguidance, np, obstore, prometheus_client, pydantic_settings),
    *(rich, safetensors, starlette, tokenizers, transformers, uvicorn),
    *(AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast),
)
"""Names of transformers are loaded when they are asked for."""

if forbidden := {"grpc", "mlx"} & set(sys.modules):
    raise RuntimeError(f"{forbidden} would be forked after their import; take out what imports them")
