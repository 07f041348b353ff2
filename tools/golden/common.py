# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the golden-file makers: random weights that hide nothing, forced eager mathematics, storage.

Needs Python 3.11+, torch, transformers >= 5.17, safetensors. The C++ tests read the stored files and need none of it.
"""

import json
import os

os.environ.setdefault("USE_HUB_KERNELS", "0")  # the plain torch path is the reading that we compare with

import numpy as np
import torch
from safetensors.torch import save_file

PROMPT_LENGTHS = (1, 2, 63, 64, 65, 300)
GREEDY_TOKENS = 64


def deterministic():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # another thread count moves logits by up to 6e-5
    torch.use_deterministic_algorithms(True)


def randomise(model, seed):
    """Gives every parameter values that matter: zero-initialised norms, A_log and dt_bias would hide mistakes."""
    g = torch.Generator().manual_seed(seed)

    def normal(p, mean, std):
        return mean + std * torch.randn(p.shape, generator=g, dtype=torch.float32)

    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if name.endswith("A_log"):
                v = torch.log(torch.empty(p.shape).uniform_(0.01, 8, generator=g))
            elif name.endswith("dt_bias"):
                v = normal(p, -2.0, 1.5)
            elif name.endswith("linear_attn.norm.weight"):
                v = normal(p, 1.0, 0.3)
            elif name.endswith("conv1d.weight"):
                v = normal(p, 0.0, 0.5)
            elif "visual" in name and name.endswith((".norm.weight", "norm1.weight", "norm2.weight")):
                v = normal(p, 1.0, 0.2)
            elif p.ndim == 1:  # zero-centred norms, biases
                v = normal(p, 0.0, 0.3)
            elif "embed" in name:
                v = normal(p, 0.0, 0.5)
            else:
                fan_in = p.shape[-1] if p.ndim == 3 else p[0].numel()  # 3-D: stacked experts [E, out, in]
                v = normal(p, 0.0, 1.3 / fan_in**0.5)
            p.copy_(v)


def save_checkpoint(model, directory):
    model.save_pretrained(directory, safe_serialization=True)
    for junk in ("README.md",):
        path = os.path.join(directory, junk)
        if os.path.exists(path):
            os.remove(path)


def prompt(length, vocab, seed):
    return np.random.default_rng(seed + length).integers(0, vocab, size=length).tolist()


def positions_kept(length):
    """The last position, the first, and some around chunk borders."""
    return sorted({p for p in (0, 1, 62, 63, 64, 127, length // 2, length - 1) if 0 <= p < length})


def store(path, tensors, notes):
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"notes": json.dumps(notes)})
    print(path, os.path.getsize(path), "bytes", notes)


def linear_states(cache, layer):
    """(conv [C, kernel-1] oldest first, recurrent [Hv, V, K]) of one sequence, in this project's state layout."""
    conv = cache.get_conv_state(layer, state_idx=0)[0]
    recurrent = cache.get_recurrent_state(layer, state_idx=0)[0]
    return conv[:, -3:].float().clone(), recurrent.transpose(-1, -2).float().clone()
