# SPDX-License-Identifier: Apache-2.0
"""Writes tables.txt: cos and sin of transformers' own rotary embedding classes, for rope_test.cc.

Per case: a line "kind theta dim s0 s1 s2 tokens", then one line per row of positions, then the cos of every pair of
every token, then the sin. Only the first half of a head is kept: transformers repeats it.
"""
import sys

import torch
import transformers
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as q25
from transformers.models.qwen3_5 import modeling_qwen3_5 as q35
from transformers.models.qwen3_next import modeling_qwen3_next as qnext
from transformers.models.qwen3_vl import modeling_qwen3_vl as q3vl
from transformers import Qwen2_5_VLConfig, Qwen3NextConfig, Qwen3VLConfig
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig, Qwen3_5VisionConfig

POSITIONS = torch.tensor([[0, 1, 7, 4095, 262143], [0, 2, 9, 31, 262100], [0, 3, 5, 17, 262000]])
X = torch.zeros(1, dtype=torch.float32)


def text(kind, theta, dim, sections, module, rows):
    positions = POSITIONS[:rows]
    cos, sin = module(X, positions[:, None, :] if rows == 3 else positions)
    if kind == "chunked" and cos.dim() == 4:  # older layout: sections are picked where q and k are rotated
        pick = lambda t: torch.cat([m[i % 3] for i, m in enumerate(t.split(sections * 2, dim=-1))], dim=-1)
        cos, sin = pick(cos), pick(sin)
    emit(kind, theta, dim, sections, positions, cos.reshape(-1, dim), sin.reshape(-1, dim))


def emit(kind, theta, dim, sections, positions, cos, sin):
    print(kind, repr(float(theta)), dim, *sections, positions.shape[1])
    for row in positions:
        print(*row.tolist())
    for table in (cos, sin):
        assert torch.equal(table[:, : dim // 2], table[:, dim // 2 :])
        print(*(f"{v:.9g}" for v in table[:, : dim // 2].flatten().tolist()))


def rope(theta, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


print("# transformers", transformers.__version__)
c = Qwen3_5TextConfig(head_dim=256, rope_parameters=rope(
    1e7, partial_rotary_factor=0.25, mrope_section=[11, 11, 10], mrope_interleaved=True))
text("interleaved", 1e7, 64, [11, 11, 10], q35.Qwen3_5TextRotaryEmbedding(c), 3)
c = Qwen3VLConfig().text_config
c.head_dim = 128
c.rope_parameters = rope(5e6, mrope_section=[24, 20, 20], mrope_interleaved=True)
text("interleaved", 5e6, 128, [24, 20, 20], q3vl.Qwen3VLTextRotaryEmbedding(c), 3)
c = Qwen2_5_VLConfig().text_config
c.hidden_size, c.num_attention_heads, c.head_dim = 2048, 16, 128
c.rope_parameters = rope(1e6, mrope_section=[16, 24, 24])
text("chunked", 1e6, 128, [16, 24, 24], q25.Qwen2_5_VLRotaryEmbedding(c), 3)
c = Qwen3NextConfig(head_dim=256, rope_parameters=rope(1e7, partial_rotary_factor=0.25))
text("plain", 1e7, 64, [0, 0, 0], qnext.Qwen3NextRotaryEmbedding(c), 1)
for dim in (72, 64):
    c = Qwen3_5VisionConfig(hidden_size=dim * 16, num_heads=16)
    c.num_attention_heads = 16
    c.rope_parameters = {"rope_type": "axial", "rope_theta": 10000.0}
    positions = torch.tensor([[0, 1, 5, 63], [0, 3, 2, 95]])
    cos, sin = q35.Qwen3_5VisionRotaryEmbedding(c)(X, positions.T)
    emit("axial", 1e4, dim, [0, 0, 0], positions, cos.reshape(-1, dim), sin.reshape(-1, dim))
