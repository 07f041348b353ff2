# SPDX-License-Identifier: Apache-2.0
"""Writes torch_<form>.txt: the short convolution as transformers' torch paths do it, for torch_test.cc.

  gdn_bf16  Qwen3-Next / Qwen3.5: Conv1d in bf16, rounded, then SiLU on the rounded value, rounded again
  kda_bf16  Kimi-Linear / GLM: fp32 weights, input cast to fp32, SiLU in fp32, output cast to bf16
  gdn_fp32  the same module in fp32
Run in this folder with any Python that has torch (2.x): python make_torch.py
Each line: a name, the shape, then the bits of the elements as unsigned integers.
"""
import torch

T, C, W = 13, 21, 4


def bits(x):
    if x.dtype == torch.float32:
        return (x.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF).flatten().tolist()
    return (x.contiguous().view(torch.int16).to(torch.int64) & 0xFFFF).flatten().tolist()


def write(name, io, weight_dtype):
    g = torch.Generator().manual_seed(11)
    x = torch.randn(T, C, generator=g).to(io)
    weight = (0.5 * torch.randn(C, 1, W, generator=g)).to(weight_dtype)
    y = torch.nn.functional.conv1d(x.to(weight_dtype).T[None], weight, padding=W - 1, groups=C)[..., :T]
    out = torch.nn.functional.silu(y)[0].T.to(io)
    with open(f"torch_{name}.txt", "w") as f:
        for label, v in (("x", x), ("weight", weight[:, 0]), ("out", out)):
            print(label, *v.shape, *bits(v), file=f)


torch.set_num_threads(1)
write("gdn_bf16", torch.bfloat16, torch.bfloat16)
write("kda_bf16", torch.bfloat16, torch.float32)
write("gdn_fp32", torch.float32, torch.float32)
