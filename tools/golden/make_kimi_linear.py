# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/kimi_linear: small random Kimi-Linear checkpoints and what transformers computes with them.

    python3 tools/golden/make_kimi_linear.py --out tests/golden/kimi_linear

Checkpoints
  text       fp32, as transformers' save_pretrained writes it
  fused      fp32, the same model under the names that its modules have in memory: fused experts, packed convolution,
             forget_gate.*; one file of tensors, no golden.safetensors of its own
  published  bf16, names, shapes, sharding and config spelling of the released 48B-A3B: linear_attn_config with 1-based
             lists, A_log [1,1,H,1], separate convolutions, experts.N.w1/w2/w3, two shards and an index
text and published get a golden.safetensors: see parity.py.
"""

import argparse
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

from common import deterministic, prompt, randomise, save_checkpoint
from parity import logits_and_cache, run
from transformers import KimiLinearConfig, KimiLinearForCausalLM

VOCAB = 384
PROMPTS = (1, 2, 63, 64, 65, 300, 2100)
LAYERS = ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"]
LINEAR = [i for i, kind in enumerate(LAYERS) if kind == "linear_attention"]


def config():
    return KimiLinearConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, moe_intermediate_size=24, num_hidden_layers=len(LAYERS),
        layer_types=LAYERS, num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=16, num_local_experts=8, num_experts_per_tok=2, n_shared_experts=2, n_group=2,
        topk_group=1, linear_head_dim=32, linear_num_heads=2, linear_conv_kernel_dim=4, max_position_embeddings=4096,
        rms_norm_eps=1e-5, pad_token_id=None, bos_token_id=None, eos_token_id=VOCAB - 1)


def build(seed, experts, peaked=False):
    """`experts` scales the routed experts: strong ones make every part count, weak ones keep bf16 runs comparable (a
    rounding that changes a choice of experts moves all later tokens). `peaked` spreads the head's rows, so that the most
    likely token stands out as in a trained model."""
    model = KimiLinearForCausalLM(config())
    randomise(model, seed)
    g = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if "norm" in name:  # plain weights, around one
                p.copy_(1 + 0.3 * torch.randn(p.shape, generator=g))
            elif ".experts." in name:  # [E, out, in]
                p.copy_(experts / p.shape[-1] ** 0.5 * torch.randn(p.shape, generator=g))
        if peaked:
            model.lm_head.weight *= torch.exp(0.5 * torch.randn(VOCAB, 1, generator=g))
        for name, b in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                b.copy_(0.3 * torch.randn(b.shape, generator=g))
    return model


def published_config():
    """Fields and spelling of the released config.json."""
    c = config()
    numbered = list(enumerate(LAYERS, start=1))
    return {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16",
        "vocab_size": c.vocab_size, "hidden_size": c.hidden_size, "head_dim": 72,
        "intermediate_size": c.intermediate_size, "moe_intermediate_size": c.moe_intermediate_size,
        "num_hidden_layers": c.num_hidden_layers, "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads, "hidden_act": "silu", "rms_norm_eps": c.rms_norm_eps,
        "q_lora_rank": None, "kv_lora_rank": c.kv_lora_rank, "qk_nope_head_dim": c.qk_nope_head_dim,
        "qk_rope_head_dim": c.qk_rope_head_dim, "v_head_dim": c.v_head_dim, "mla_use_nope": True,
        "num_experts": c.num_local_experts, "num_experts_per_token": c.num_experts_per_tok,
        "num_shared_experts": c.n_shared_experts, "moe_router_activation_func": "sigmoid", "moe_renormalize": True,
        "routed_scaling_factor": c.routed_scaling_factor, "use_grouped_topk": True, "num_expert_group": c.n_group,
        "topk_group": c.topk_group, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_nextn_predict_layers": 0,
        "rope_theta": 10000.0, "rope_scaling": None, "model_max_length": c.max_position_embeddings,
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": c.eos_token_id, "pad_token_id": 0,
        "linear_attn_config": {
            "kda_layers": [i for i, kind in numbered if kind == "linear_attention"],
            "full_attn_layers": [i for i, kind in numbered if kind == "full_attention"],
            "num_heads": c.linear_num_heads, "head_dim": c.linear_head_dim, "short_conv_kernel_size": 4},
    }


def published_tensors(saved):
    """save_pretrained already writes the released names, except for the dense layer and the shape of A_log."""
    out = {}
    for name, t in saved.items():
        if ".layers.0." in name:
            name = name.replace("block_sparse_moe", "mlp")
        if name.endswith("A_log"):
            t = t.reshape(1, 1, -1, 1)
        out[name] = t
    return out


def save_sharded(tensors, directory):
    names = sorted(tensors)
    half = len(names) // 2
    weight_map = {}
    for shard, part in enumerate((names[:half], names[half:]), start=1):
        file = f"model-0000{shard}-of-00002.safetensors"
        save_file({n: tensors[n].contiguous() for n in part}, os.path.join(directory, file), metadata={"format": "pt"})
        weight_map |= {n: file for n in part}
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    deterministic()
    eager = dict(attn_implementation="eager", experts_implementation="eager")

    text = os.path.join(out, "text")
    os.makedirs(text, exist_ok=True)
    model = build(23, 1.3)
    save_checkpoint(model, text)
    loaded = KimiLinearForCausalLM.from_pretrained(text, dtype=torch.float32, **eager).eval()
    run(loaded, text, 23, PROMPTS, VOCAB - 8, LINEAR)

    fused = os.path.join(out, "fused")
    os.makedirs(fused, exist_ok=True)
    shutil.copy(os.path.join(text, "config.json"), fused)
    save_file({k: v.contiguous() for k, v in loaded.state_dict().items()}, os.path.join(fused, "model.safetensors"),
              metadata={"format": "pt"})

    published = os.path.join(out, "published")
    os.makedirs(published, exist_ok=True)
    scratch = os.path.join(published, "scratch")
    build(22, 0.4, peaked=True).to(torch.bfloat16).save_pretrained(scratch, safe_serialization=True)
    saved = load_file(os.path.join(scratch, "model.safetensors"))
    # transformers' default attention, as released models run: scores and sums in fp32.
    sdpa = dict(attn_implementation="sdpa", experts_implementation="eager")
    low = KimiLinearForCausalLM.from_pretrained(scratch, dtype=torch.bfloat16, **sdpa).eval()
    high = KimiLinearForCausalLM.from_pretrained(scratch, dtype=torch.float32, **eager).eval()
    save_sharded(published_tensors(saved), published)
    with open(os.path.join(published, "config.json"), "w") as f:
        json.dump(published_config(), f, indent=1)
    # transformers reads the published files as it reads its own.
    again = KimiLinearForCausalLM.from_pretrained(published, dtype=torch.bfloat16, **sdpa).eval()
    ids = prompt(65, VOCAB - 8, 22)
    with torch.no_grad():
        assert torch.equal(logits_and_cache(again, ids)[0], logits_and_cache(low, ids)[0])
    run(low, published, 22, PROMPTS, VOCAB - 8, [], exact=high)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
