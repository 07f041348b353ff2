# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/glm5_next: small random GLM-5.3-Flash checkpoints and what transformers computes with their text
part.

    python3 tools/golden/make_glm5_next.py --out tests/golden/glm5_next

Checkpoints
  text       fp32, as transformers' save_pretrained writes it, with a vision tower that the text tests leave alone
  published  bf16, names, sharding and config spelling of the release: linear_attn_config, hc_attn_*, separate
             convolutions, experts.N.*, two shards and an index, a layer of multi-token prediction after the last one
text and published get a golden.safetensors: see parity.py; in `text` also
  wide.positions, wide.logits   the prompt of 2100 tokens with index_topk 2048, as released; the others have 32
Selection is discontinuous: the smallest distance between the last pool kept and the first one left out is printed.
"""

import argparse
import json
import os
import shutil

import torch
from safetensors.torch import load_file

from common import deterministic, prompt, randomise, save_checkpoint
from make_kimi_linear import save_sharded
from parity import logits_and_cache, run
from transformers import Glm5NextConfig, Glm5NextForConditionalGeneration

VOCAB = 384
PROMPTS = (1, 2, 63, 64, 65, 300, 2100)
LAYERS = ["linear_attention", "indexed_attention", "indexed_attention", "linear_attention", "indexed_attention"]
LINEAR = [i for i, kind in enumerate(LAYERS) if kind == "linear_attention"]
INDEXERS = ["full", "full", "shared", "full", "full"]
MLPS = ["dense", "sparse", "sparse", "dense", "sparse"]
TOPK, WIDE_TOPK = 32, 2048


def config(topk=TOPK):
    text = dict(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=len(LAYERS),
        layer_types=LAYERS, indexer_types=INDEXERS, mlp_layer_types=MLPS, num_attention_heads=4, num_key_value_heads=4,
        q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=0, v_head_dim=16, n_routed_experts=8,
        num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1, linear_head_dim=32, linear_num_heads=2,
        linear_conv_kernel_dim=4, linear_lower_bound=-5.0, swiglu_limit=1.5, hc_mult=4, hc_eps=1e-6,
        hc_sinkhorn_iters=20, index_topk=topk, index_head_dim=16, index_n_heads=16, index_kpool=4,
        max_position_embeddings=4096, rms_norm_eps=1e-5, pad_token_id=None, eos_token_id=VOCAB - 1)
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=64,
                  projection_intermediate_size=16, patch_size=4)
    return Glm5NextConfig(text_config=text, vision_config=vision, image_token_id=VOCAB - 2, video_token_id=VOCAB - 3,
                          image_start_token_id=VOCAB - 4, image_end_token_id=VOCAB - 5,
                          video_start_token_id=VOCAB - 6, video_end_token_id=VOCAB - 7)


def build(seed, experts, peaked=False, topk=TOPK):
    """`experts`, `peaked`: see make_kimi_linear.py."""
    model = Glm5NextForConditionalGeneration(config(topk))
    randomise(model, seed)
    g = torch.Generator().manual_seed(seed + 1)

    def normal(p, mean, std):
        return mean + std * torch.randn(p.shape, generator=g)

    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if name.endswith("norm.bias"):
                p.copy_(normal(p, 0, 0.3))
            elif "norm" in name:  # plain weights, around one
                p.copy_(normal(p, 1, 0.3))
            elif ".experts." in name:  # [E, out, in]
                p.copy_(normal(p, 0, experts / p.shape[-1] ** 0.5))
            elif name.endswith("_hc.base"):
                p.copy_(normal(p, 0, 0.7))
            elif name.endswith("_hc.scale"):
                p.copy_(normal(p, 1, 0.3))
            elif name.endswith("compress_ape"):
                p.copy_(normal(p, 0, 0.7))
            elif name.endswith("A_log"):
                p.copy_(normal(p, 0, 0.5))
        if peaked:
            model.lm_head.weight *= torch.exp(0.5 * torch.randn(VOCAB, 1, generator=g))
        for name, b in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                b.copy_(normal(b, 0, 0.3))
    return model


class SelectionGap:
    """Smallest relative distance between the last pool kept and the first one left out, over all indexer calls."""

    def __enter__(self):
        self.smallest, self.selections, self._topk = float("inf"), 0, torch.Tensor.topk
        outer = self

        def topk(scores, k, dim=-1, **kwargs):
            if scores.dim() == 3 and scores.shape[-1] > k:
                best = outer._topk(scores, k + 1, dim=dim).values
                real = best[..., -1] > torch.finfo(scores.dtype).min
                if real.any():
                    gap = (best[..., -2] - best[..., -1])[real] / best.abs().amax(-1)[real]
                    outer.smallest = min(outer.smallest, float(gap.min()))
                    outer.selections += int(real.sum())
            return outer._topk(scores, k, dim=dim, **kwargs)

        torch.Tensor.topk = topk
        return self

    def __exit__(self, *args):
        torch.Tensor.topk = self._topk

    def __str__(self):
        return f"{self.selections} selections, smallest gap {self.smallest}"


@torch.no_grad()
def wide_logits(model, seed):
    ids = prompt(PROMPTS[-1], VOCAB - 8, seed)
    with SelectionGap() as gap:
        logits = logits_and_cache(model, ids)[0]
    print("wide", gap)
    keep = [0, len(ids) // 2, 2051, len(ids) - 1]
    return {"wide.positions": torch.tensor(keep, dtype=torch.int32), "wide.logits": logits[keep].clone()}


def published_config():
    """Fields and spelling of the released config.json (vision fields as transformers writes them)."""
    c = config(WIDE_TOPK)
    t = c.text_config
    vision = {k: v for k, v in c.vision_config.to_diff_dict().items() if k != "transformers_version"}
    return {
        "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "dtype": "bfloat16",
        "image_token_id": c.image_token_id, "video_token_id": c.video_token_id, "tie_word_embeddings": False,
        "text_config": {
            "model_type": "glm5_next_text", "dtype": "bfloat16", "vocab_size": t.vocab_size,
            "hidden_size": t.hidden_size, "intermediate_size": t.intermediate_size,
            "moe_intermediate_size": t.moe_intermediate_size, "num_hidden_layers": t.num_hidden_layers,
            "num_attention_heads": t.num_attention_heads, "num_key_value_heads": t.num_key_value_heads, "head_dim": 0,
            "q_lora_rank": t.q_lora_rank, "kv_lora_rank": t.kv_lora_rank, "qk_nope_head_dim": t.qk_nope_head_dim,
            "qk_rope_head_dim": 0, "v_head_dim": t.v_head_dim, "n_routed_experts": t.n_routed_experts,
            "num_experts_per_tok": t.num_experts_per_tok, "n_shared_experts": t.n_shared_experts,
            "routed_scaling_factor": t.routed_scaling_factor, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
            "moe_router_dtype": "float32", "scoring_func": "sigmoid", "hidden_act": "silu",
            "rms_norm_eps": t.rms_norm_eps, "swiglu_limit": t.swiglu_limit, "hc_mult": t.hc_mult, "hc_eps": t.hc_eps,
            "hc_sinkhorn_iters": t.hc_sinkhorn_iters, "index_topk": t.index_topk, "index_head_dim": t.index_head_dim,
            "index_n_heads": t.index_n_heads, "index_kpool": t.index_kpool, "index_kpool_always_select_tail": True,
            "layer_types": ["linear_attention" if x == "linear_attention" else "full_attention" for x in LAYERS],
            "mlp_layer_types": MLPS, "index_topk_pattern": "".join(x[0].upper() for x in INDEXERS),
            "num_nextn_predict_layers": 1, "max_position_embeddings": t.max_position_embeddings,
            "pad_token_id": 0, "eos_token_id": [t.eos_token_id],
            "linear_attn_config": {"head_dim": t.linear_head_dim, "num_heads": t.linear_num_heads,
                                   "short_conv_kernel_size": 4, "gate_lower_bound": -5.0, "safe_gate": True}},
        "vision_config": vision,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    deterministic()
    kind = Glm5NextForConditionalGeneration
    eager = dict(attn_implementation="eager", experts_implementation="eager")

    text = os.path.join(out, "text")
    os.makedirs(text, exist_ok=True)
    save_checkpoint(build(41, 1.3), text)
    loaded = kind.from_pretrained(text, dtype=torch.float32, **eager).eval()
    wide = kind.from_pretrained(text, dtype=torch.float32, config=config(WIDE_TOPK), **eager).eval()
    with SelectionGap() as gap:
        run(loaded, text, 41, PROMPTS, VOCAB - 8, LINEAR, more=lambda model: wide_logits(wide, 41))
    print("all", gap)

    published = os.path.join(out, "published")
    os.makedirs(published, exist_ok=True)
    scratch = os.path.join(published, "scratch")
    build(32, 0.4, peaked=True, topk=WIDE_TOPK).to(torch.bfloat16).save_pretrained(scratch, safe_serialization=True)
    sdpa = dict(attn_implementation="sdpa", experts_implementation="eager")
    low = kind.from_pretrained(scratch, dtype=torch.bfloat16, **sdpa).eval()
    high = kind.from_pretrained(scratch, dtype=torch.float32, **eager).eval()
    # save_pretrained already writes the released names; the layer of multi-token prediction is ours.
    tensors = load_file(os.path.join(scratch, "model.safetensors"))
    mtp = f"model.language_model.layers.{len(LAYERS)}."
    tensors[mtp + "eh_proj.weight"] = torch.zeros(64, 128, dtype=torch.bfloat16)
    tensors[mtp + "enorm.weight"] = torch.ones(64, dtype=torch.bfloat16)
    save_sharded(tensors, published)
    with open(os.path.join(published, "config.json"), "w") as f:
        json.dump(published_config(), f, indent=1)
    run(low, published, 32, PROMPTS, VOCAB - 8, [], exact=high)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
