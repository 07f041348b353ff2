# SPDX-License-Identifier: Apache-2.0
"""Writes eager_<dtype>.txt: attention as transformers' eager_attention_forward does it, for eager_test.cc.

Run in this folder with any Python that has torch (2.x): python make_eager.py
Each line: a name, the shape, then the bits of the elements as unsigned integers.
"""
import torch

HQ, HKV, T, D = 6, 2, 11, 24


def bits(x):
    if x.dtype == torch.float32:
        return (x.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF).flatten().tolist()
    return (x.contiguous().view(torch.int16).to(torch.int64) & 0xFFFF).flatten().tolist()


def write(name, dtype):
    g = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(T, h, D, generator=g).to(dtype) for h in (HQ, HKV, HKV))
    qh = q.transpose(0, 1)
    kh, vh = (x.transpose(0, 1).repeat_interleave(HQ // HKV, dim=0) for x in (k, v))
    scores = torch.matmul(qh, kh.transpose(1, 2)) * D**-0.5
    mask = torch.full((T, T), torch.finfo(dtype).min, dtype=dtype).triu(1)
    weights = torch.softmax(scores + mask, dim=-1, dtype=torch.float32).to(dtype)
    out = torch.matmul(weights, vh).transpose(0, 1)
    with open(f"eager_{name}.txt", "w") as f:
        for label, x in (("q", q), ("k", k), ("v", v), ("out", out)):
            print(label, *x.shape, *bits(x), file=f)


torch.set_num_threads(1)
write("fp32", torch.float32)
write("bf16", torch.bfloat16)
