# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/qwen_moe: small random Qwen3-Next and Qwen3.5-MoE checkpoints and what transformers computes.

    python3 tools/golden/make_qwen_moe.py --out tests/golden/qwen_moe

Checkpoints, each with golden.safetensors as parity.py has it:
  next, next_bf16   Qwen3NextForCausalLM, as transformers saves it; layer 1 is dense (mlp_only_layers)
  moe               Qwen3_5MoeForConditionalGeneration (with a vision tower), as transformers saves it
  moe_bf16          Qwen3_5MoeForCausalLM
And without golden files, because they hold the weights of another one:
  next_released, moe_released   names, sharding and config.json spelled as the released checkpoints have them, mtp.*
                                among them, from `next` and `moe` by the renames of released_next and released_moe
"""

import argparse
import json
import os

import torch
from safetensors.torch import load_file, save_file

from common import deterministic, randomise, save_checkpoint
from parity import run
from transformers import (Qwen3_5MoeConfig, Qwen3_5MoeForCausalLM, Qwen3_5MoeForConditionalGeneration,
                          Qwen3_5MoeTextConfig, Qwen3NextConfig, Qwen3NextForCausalLM)

VOCAB = 384
LENGTHS = (1, 2, 63, 64, 65, 300, 2100)
LAYERS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
LINEAR = [0, 1, 2]
EXPERTS, PER_TOKEN, INTER, SHARED, HIDDEN = 8, 3, 16, 40, 64


def shared_fields(tied):
    return dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=len(LAYERS), layer_types=LAYERS,
                num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6, linear_num_key_heads=2,
                linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=16, linear_conv_kernel_dim=4,
                max_position_embeddings=4096, tie_word_embeddings=tied, eos_token_id=VOCAB - 1, num_experts=EXPERTS,
                num_experts_per_tok=PER_TOKEN, moe_intermediate_size=INTER, shared_expert_intermediate_size=SHARED)


def next_config(tied=False):
    return Qwen3NextConfig(**shared_fields(tied), intermediate_size=56, mlp_only_layers=[1], norm_topk_prob=True,
                           decoder_sparse_step=1,
                           rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25})


def moe_text(tied):
    return shared_fields(tied) | {"rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
        "mrope_interleaved": True}}


def moe_vl_config():
    vision = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=4, out_hidden_size=HIDDEN,
                  num_position_embeddings=16)
    return Qwen3_5MoeConfig(text_config=moe_text(False), vision_config=vision, tie_word_embeddings=False,
                            image_token_id=VOCAB - 4, video_token_id=VOCAB - 5, vision_start_token_id=VOCAB - 3,
                            vision_end_token_id=VOCAB - 2)


@torch.no_grad()
def decide(model, seed):
    """Makes a model as decided as a trained one, so that bf16 noise seldom turns its answers: the router prefers some
    experts clearly, blocks add little to the stream, and the head knows a successor of every token."""
    for name, p in model.named_parameters():
        if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight", "down_proj")):
            p.mul_(0.15)
        if name.endswith("mlp.gate.weight"):
            p.mul_(2.5)
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))
    model.lm_head.weight.add_(1.2 * model.model.embed_tokens.weight[order])


def mtp_tensors(layer, dtype, seed):
    """The multi-token prediction head of the release (a full-attention layer like those of the model); random."""
    g = torch.Generator().manual_seed(seed)
    shapes = {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN), "mtp.norm.weight": (HIDDEN,),
              "mtp.pre_fc_norm_embedding.weight": (HIDDEN,), "mtp.pre_fc_norm_hidden.weight": (HIDDEN,)}
    shapes |= {f"mtp.layers.0.{name}": tuple(t.shape) for name, t in layer.items()}
    return {name: torch.randn(s, generator=g).to(dtype) for name, s in shapes.items()}


def layer_tensors(tensors, prefix):
    return {name[len(prefix):]: t for name, t in tensors.items() if name.startswith(prefix)}


def save_sharded(tensors, directory, shards):
    """Tensors dealt out to shards with no regard for layers, and the index."""
    os.makedirs(directory, exist_ok=True)
    parts = [{} for _ in range(shards)]
    for i, name in enumerate(sorted(tensors)):
        parts[i * 7 % shards][name] = tensors[name].contiguous()
    where = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, os.path.join(directory, file), metadata={"format": "pt"})
        where |= {name: file for name in part}
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}, f, indent=2)
        f.write("\n")


def save_config(directory, config):
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)
        f.write("\n")


def released_next(source, directory):
    """Released Qwen3-Next: one tensor per expert, interleaved in_proj_qkvz and in_proj_ba, flat config."""
    tensors = load_file(os.path.join(source, "model.safetensors"))
    assert "model.layers.0.mlp.experts.0.gate_proj.weight" in tensors, sorted(tensors)[:20]
    tensors |= mtp_tensors(layer_tensors(tensors, "model.layers.3."), torch.float32, 31)
    save_sharded(tensors, directory, 3)
    c = next_config()
    save_config(directory, {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "torch_dtype": "float32",
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "decoder_sparse_step": 1,
        "eos_token_id": VOCAB - 1, "full_attention_interval": 4, "head_dim": c.head_dim, "hidden_act": "silu",
        "hidden_size": c.hidden_size, "initializer_range": 0.02, "intermediate_size": c.intermediate_size,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": c.linear_key_head_dim,
        "linear_num_key_heads": c.linear_num_key_heads, "linear_num_value_heads": c.linear_num_value_heads,
        "linear_value_head_dim": c.linear_value_head_dim, "max_position_embeddings": 4096, "mlp_only_layers": [1],
        "moe_intermediate_size": INTER, "norm_topk_prob": True, "num_attention_heads": c.num_attention_heads,
        "num_experts": EXPERTS, "num_experts_per_tok": PER_TOKEN, "num_hidden_layers": len(LAYERS),
        "num_key_value_heads": c.num_key_value_heads, "output_router_logits": False, "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 10000, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": SHARED, "tie_word_embeddings": False, "transformers_version": "4.57.0.dev0",
        "use_cache": True, "use_sliding_window": False, "vocab_size": VOCAB})


def released_moe(source, directory):
    """Released Qwen3.5-MoE: model.language_model.*, stacked experts without ".weight", flat projections, nested config."""
    saved = load_file(os.path.join(source, "model.safetensors"))
    tensors = {}
    for name, t in saved.items():
        if ".experts." not in name:
            tensors[name if not name.startswith("model.layers.") else name.replace("model.", "model.language_model.", 1)] = t
            continue
        if name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = t
            continue
        prefix, rest = name.split(".experts.")
        expert, kind = rest.split(".")[:2]
        if expert != "0" or kind == "up_proj":
            continue
        stack = lambda k: torch.stack([saved[f"{prefix}.experts.{e}.{k}.weight"] for e in range(EXPERTS)])
        if kind == "gate_proj":
            tensors[f"{prefix}.experts.gate_up_proj"] = torch.cat([stack("gate_proj"), stack("up_proj")], dim=1)
        else:
            tensors[f"{prefix}.experts.down_proj"] = stack("down_proj")
    assert "model.language_model.layers.0.mlp.experts.gate_up_proj" in tensors, sorted(tensors)[:20]
    tensors |= mtp_tensors(layer_tensors(tensors, "model.language_model.layers.3."), torch.float32, 32)
    save_sharded(tensors, directory, 2)
    c = moe_vl_config()
    t, v = c.text_config, c.vision_config
    save_config(directory, {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
        "image_token_id": VOCAB - 4, "video_token_id": VOCAB - 5, "vision_start_token_id": VOCAB - 3,
        "vision_end_token_id": VOCAB - 2, "tie_word_embeddings": False, "transformers_version": "4.57.0.dev0",
        "text_config": {
            "model_type": "qwen3_5_moe_text", "dtype": "float32", "attention_bias": False, "attention_dropout": 0.0,
            "attn_output_gate": True, "eos_token_id": VOCAB - 1, "full_attention_interval": 4, "head_dim": t.head_dim,
            "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02, "layer_types": LAYERS,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": t.linear_key_head_dim,
            "linear_num_key_heads": t.linear_num_key_heads, "linear_num_value_heads": t.linear_num_value_heads,
            "linear_value_head_dim": t.linear_value_head_dim, "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 4096, "moe_intermediate_size": INTER, "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False, "num_attention_heads": t.num_attention_heads,
            "num_experts": EXPERTS, "num_experts_per_tok": PER_TOKEN, "num_hidden_layers": len(LAYERS),
            "num_key_value_heads": t.num_key_value_heads, "rms_norm_eps": 1e-6, "router_aux_loss_coef": 0.001,
            "shared_expert_intermediate_size": SHARED, "use_cache": True, "vocab_size": VOCAB,
            "rope_parameters": {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default",
                                "rope_theta": 10000, "partial_rotary_factor": 0.25}},
        "vision_config": {
            "model_type": "qwen3_5_moe", "deepstack_visual_indexes": [], "depth": v.depth,
            "hidden_act": "gelu_pytorch_tanh", "hidden_size": v.hidden_size, "in_channels": 3,
            "initializer_range": 0.02, "intermediate_size": v.intermediate_size, "num_heads": v.num_heads,
            "num_position_embeddings": 16, "out_hidden_size": HIDDEN, "patch_size": v.patch_size,
            "spatial_merge_size": 2, "temporal_patch_size": 2}})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", help="make this checkpoint alone")
    args = parser.parse_args()
    out = args.out
    deterministic()
    made = [("next", Qwen3NextForCausalLM(next_config()), torch.float32, 21),
            ("next_bf16", Qwen3NextForCausalLM(next_config()), torch.bfloat16, 22),
            ("moe", Qwen3_5MoeForConditionalGeneration(moe_vl_config()), torch.float32, 23),
            ("moe_bf16", Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**moe_text(False))), torch.bfloat16, 25)]
    for name, model, dtype, seed in made:
        if args.only not in (None, name):
            continue
        directory = os.path.join(out, name)
        os.makedirs(directory, exist_ok=True)
        randomise(model, seed)
        if dtype == torch.bfloat16:
            decide(model, seed)
        save_checkpoint(model.to(dtype), directory)

        # What is compared is the saved file, read back.
        def load(dtype):
            return type(model).from_pretrained(directory, dtype=dtype, attn_implementation="eager",
                                               experts_implementation="eager").eval()

        run(load(dtype), directory, seed, LENGTHS, VOCAB - 8, LINEAR,
            exact=load(torch.float32) if dtype == torch.bfloat16 else None)
    if args.only is not None:
        return
    released_next(os.path.join(out, "next"), os.path.join(out, "next_released"))
    released_moe(os.path.join(out, "moe"), os.path.join(out, "moe_released"))


if __name__ == "__main__":
    main()
