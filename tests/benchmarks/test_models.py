"""Where models are, and about what their KV takes."""

import json
from pathlib import Path

from benchmarks.models import DEMO, kv_bytes_per_token
from benchmarks.random_models import GEOMETRIES


def test_what_a_token_takes(tmp_path: Path) -> None:
    # 6 layers, 2 heads of 64, K and V: 1536 elements of half a byte, and 24 groups with scale and bias in float32.
    assert kv_bytes_per_token(DEMO) == 1536 // 2 + 24 * 8
    (tmp_path / "config.json").write_text(json.dumps(GEOMETRIES["llama-3.1-8b"]))
    assert kv_bytes_per_token(tmp_path, 2) == 36 * 1024
