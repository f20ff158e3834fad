"""Small random models with recurrent layers, as in `tiny_models`: attention beside gated delta nets, state spaces and
short convolutions.
"""

from tests.tiny_models import writer

write_qwen3_next, write_qwen3_5, write_lfm2, write_granite4 = map(writer, ("qwen3_next", "qwen3_5", "lfm2", "granite4"))
write_nemotron_h, write_falcon_h1, write_jamba = map(writer, ("nemotron_h", "falcon_h1", "jamba"))
write_baichuan_m1 = writer("baichuan_m1")

HYBRIDS = [
    write_qwen3_next,
    write_qwen3_5,
    write_lfm2,
    write_granite4,
    write_nemotron_h,
    write_falcon_h1,
    write_jamba,
    write_baichuan_m1,
]
