# SPDX-License-Identifier: Apache-2.0
"""The two demo architectures as plain functions over a dictionary of tensors with the names of the released checkpoints.

All rows of a step lie flat in one list of N tokens (N constant), cut into segments of equal row length: only attention and
the scan over chunks see rows, so that everything else has one shape and is compiled once.
"""

import torch
import torch.nn.functional as F

import delta
from vocabulary import VOCAB

HIDDEN = 256
LAYERS = ["linear", "linear", "full"] * 2
EPS = {"gdn": 1e-6, "kda": 1e-5}
# demo-gdn-vl
GDN_HEADS, DELTA_DIM = 2, 128
HEADS, KV_HEADS, HEAD_DIM, ROTARY = 4, 2, 64, 16
MROPE_SECTION = [3, 3, 2]
THETA = 1e7
INNER = 512
V_HIDDEN, V_DEPTH, V_HEADS, V_INNER, V_GRID = 128, 3, 4, 384, 16
# demo-kda
KDA_HEADS = 2
MLA_HEADS, NOPE, ROPE, V_DIM, RANK = 4, 64, 32, 64, 128
EXPERTS, TOP_K, EXPERT_INNER, SHARED = 8, 2, 64, 2
ROUTED_SCALE = 2.0


def config(family, ids):
    """config.json"""
    if family == "kda":
        return {
            "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER,
            "moe_intermediate_size": EXPERT_INNER, "num_hidden_layers": len(LAYERS), "num_attention_heads": MLA_HEADS, "num_key_value_heads": MLA_HEADS,
            "head_dim": HIDDEN // MLA_HEADS, "hidden_act": "silu", "rms_norm_eps": EPS["kda"], "q_lora_rank": None, "kv_lora_rank": RANK, "qk_nope_head_dim": NOPE,
            "qk_rope_head_dim": ROPE, "v_head_dim": V_DIM, "mla_use_nope": True, "num_experts": EXPERTS, "num_experts_per_token": TOP_K, "num_shared_experts": SHARED,
            "moe_router_activation_func": "sigmoid", "moe_renormalize": True, "routed_scaling_factor": ROUTED_SCALE, "use_grouped_topk": True, "num_expert_group": 1,
            "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_nextn_predict_layers": 0, "rope_theta": 10000.0, "model_max_length": 8192,
            "tie_word_embeddings": False, "bos_token_id": ids["[BOS]"], "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["[PAD]"], "dtype": "bfloat16",
            "linear_attn_config": {"kda_layers": [i + 1 for i, k in enumerate(LAYERS) if k == "linear"], "full_attn_layers": [i + 1 for i, k in enumerate(LAYERS) if k == "full"],
                                   "num_heads": KDA_HEADS, "head_dim": DELTA_DIM, "short_conv_kernel_size": 4}}
    text = {
        "model_type": "qwen3_5_text", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": len(LAYERS), "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "linear_num_key_heads": GDN_HEADS, "linear_num_value_heads": GDN_HEADS, "linear_key_head_dim": DELTA_DIM,
        "linear_value_head_dim": DELTA_DIM, "linear_conv_kernel_dim": 4, "hidden_act": "silu", "rms_norm_eps": EPS["gdn"], "attention_bias": False, "attn_output_gate": True,
        "max_position_embeddings": 8192, "mamba_ssm_dtype": "float32", "tie_word_embeddings": True, "dtype": "bfloat16", "eos_token_id": ids["<|im_end|>"],
        "layer_types": [k + "_attention" for k in LAYERS],
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": ROTARY / HEAD_DIM, "mrope_interleaved": True, "mrope_section": MROPE_SECTION}}
    vision = {
        "model_type": "qwen3_5", "depth": V_DEPTH, "hidden_size": V_HIDDEN, "intermediate_size": V_INNER, "num_heads": V_HEADS, "in_channels": 3, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": HIDDEN, "num_position_embeddings": V_GRID * V_GRID, "hidden_act": "gelu_pytorch_tanh"}
    return {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "dtype": "bfloat16", "tie_word_embeddings": True, "image_token_id": ids["<|image_pad|>"],
            "video_token_id": ids["<|video_pad|>"], "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"], "text_config": text, "vision_config": vision}


def init(family, seed):
    """Random tensors: {name: fp32}. Experts are stacked ([E, 2I, H] and [E, H, I]) until export."""
    gen = torch.Generator().manual_seed(seed)
    p = {}

    def matrix(name, *shape, gain=0.5):
        p[name] = torch.randn(*shape, generator=gen) * (gain / shape[-1]**0.5)

    def mixer_gates(prefix, heads, width, a_shape):
        p[prefix + "A_log"] = torch.empty(heads).uniform_(0.5, 8.0, generator=gen).log().view(a_shape)
        dt = torch.exp(torch.empty(width).uniform_(-6.9, -2.3, generator=gen))
        p[prefix + "dt_bias"] = dt + torch.log(-torch.expm1(-dt))

    root = "model.language_model." if family == "gdn" else "model."
    p[root + "embed_tokens.weight"] = torch.randn(VOCAB, HIDDEN, generator=gen) * 0.05
    norm = torch.zeros if family == "gdn" else torch.ones
    p[root + "norm.weight"] = norm(HIDDEN)
    if family == "kda":
        p["lm_head.weight"] = torch.randn(VOCAB, HIDDEN, generator=gen) * 0.02
    for i, kind in enumerate(LAYERS):
        layer = f"{root}layers.{i}."
        p[layer + "input_layernorm.weight"], p[layer + "post_attention_layernorm.weight"] = norm(HIDDEN), norm(HIDDEN)
        if family == "gdn" and kind == "linear":
            a, width = layer + "linear_attn.", GDN_HEADS * DELTA_DIM
            matrix(a + "in_proj_qkv.weight", 3 * width, HIDDEN)
            matrix(a + "in_proj_z.weight", width, HIDDEN)
            matrix(a + "in_proj_b.weight", GDN_HEADS, HIDDEN)
            matrix(a + "in_proj_a.weight", GDN_HEADS, HIDDEN)
            p[a + "conv1d.weight"] = torch.empty(3 * width, 1, 4).uniform_(-0.5, 0.5, generator=gen)
            mixer_gates(a, GDN_HEADS, GDN_HEADS, (GDN_HEADS,))
            p[a + "norm.weight"] = torch.ones(DELTA_DIM)
            matrix(a + "out_proj.weight", HIDDEN, width, gain=0.1)
        elif family == "gdn":
            a = layer + "self_attn."
            matrix(a + "q_proj.weight", 2 * HEADS * HEAD_DIM, HIDDEN)
            matrix(a + "k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
            matrix(a + "v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
            p[a + "q_norm.weight"], p[a + "k_norm.weight"] = torch.zeros(HEAD_DIM), torch.zeros(HEAD_DIM)
            matrix(a + "o_proj.weight", HIDDEN, HEADS * HEAD_DIM, gain=0.1)
        elif kind == "linear":
            a, width = layer + "self_attn.", KDA_HEADS * DELTA_DIM
            for n in "qkv":
                matrix(a + n + "_proj.weight", width, HIDDEN)
                p[a + n + "_conv1d.weight"] = torch.empty(width, 1, 4).uniform_(-0.5, 0.5, generator=gen)
            mixer_gates(a, KDA_HEADS, width, (1, 1, KDA_HEADS, 1))
            for n in "fg":
                matrix(a + n + "_a_proj.weight", DELTA_DIM, HIDDEN)
                matrix(a + n + "_b_proj.weight", width, DELTA_DIM)
            matrix(a + "b_proj.weight", KDA_HEADS, HIDDEN)
            p[a + "o_norm.weight"] = torch.ones(DELTA_DIM)
            matrix(a + "o_proj.weight", HIDDEN, width, gain=0.1)
        else:
            a = layer + "self_attn."
            matrix(a + "q_proj.weight", MLA_HEADS * (NOPE + ROPE), HIDDEN)
            matrix(a + "kv_a_proj_with_mqa.weight", RANK + ROPE, HIDDEN)
            p[a + "kv_a_layernorm.weight"] = torch.ones(RANK)
            matrix(a + "kv_b_proj.weight", MLA_HEADS * (NOPE + V_DIM), RANK)
            matrix(a + "o_proj.weight", HIDDEN, MLA_HEADS * V_DIM, gain=0.1)
        if family == "gdn" or i == 0:
            m, inner = layer + "mlp.", INNER
        else:
            e, m, inner = layer + "block_sparse_moe.", layer + "block_sparse_moe.shared_experts.", EXPERT_INNER * SHARED
            matrix(e + "gate.weight", EXPERTS, HIDDEN)
            p[e + "gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
            matrix(e + "experts.gate_up", EXPERTS, 2 * EXPERT_INNER, HIDDEN)
            matrix(e + "experts.down", EXPERTS, HIDDEN, EXPERT_INNER, gain=0.1)
        matrix(m + "gate_proj.weight", inner, HIDDEN)
        matrix(m + "up_proj.weight", inner, HIDDEN)
        matrix(m + "down_proj.weight", HIDDEN, inner, gain=0.1)
    if family == "gdn":
        v = "model.visual."

        def affine(name, out, inner, gain=0.5):
            matrix(name + ".weight", out, inner, gain=gain)
            p[name + ".bias"] = torch.zeros(out)

        matrix(v + "patch_embed.proj.weight", V_HIDDEN, 3 * 2 * 16 * 16)
        p[v + "patch_embed.proj.weight"] = p[v + "patch_embed.proj.weight"].view(V_HIDDEN, 3, 2, 16, 16)
        p[v + "patch_embed.proj.bias"] = torch.zeros(V_HIDDEN)
        p[v + "pos_embed.weight"] = torch.randn(V_GRID * V_GRID, V_HIDDEN, generator=gen) * 0.1
        for i in range(V_DEPTH):
            b = f"{v}blocks.{i}."
            for n in ("norm1", "norm2"):
                p[b + n + ".weight"], p[b + n + ".bias"] = torch.ones(V_HIDDEN), torch.zeros(V_HIDDEN)
            affine(b + "attn.qkv", 3 * V_HIDDEN, V_HIDDEN)
            affine(b + "attn.proj", V_HIDDEN, V_HIDDEN, gain=0.1)
            affine(b + "mlp.linear_fc1", V_INNER, V_HIDDEN)
            affine(b + "mlp.linear_fc2", V_HIDDEN, V_INNER, gain=0.1)
        p[v + "merger.norm.weight"], p[v + "merger.norm.bias"] = torch.ones(V_HIDDEN), torch.zeros(V_HIDDEN)
        affine(v + "merger.linear_fc1", 4 * V_HIDDEN, 4 * V_HIDDEN)
        affine(v + "merger.linear_fc2", HIDDEN, 4 * V_HIDDEN)
    return p


FP32_NAMES = ("A_log", "dt_bias", "e_score_correction_bias")


def exported(p):
    """The tensors of model.safetensors: bf16, experts one by one, what the family keeps in fp32 in fp32."""
    out = {}
    for name, t in p.items():
        t = t.detach().cpu()
        if name.endswith("experts.gate_up"):
            for e in range(EXPERTS):
                out[f"{name[:-len('gate_up')]}{e}.w1.weight"], out[f"{name[:-len('gate_up')]}{e}.w3.weight"] = t[e].chunk(2)
        elif name.endswith("experts.down"):
            for e in range(EXPERTS):
                out[f"{name[:-len('down')]}{e}.w2.weight"] = t[e]
        else:
            out[name] = t
    return {n: (t.float() if n.endswith(FP32_NAMES) else t.to(torch.bfloat16)).contiguous().clone() for n, t in out.items()}


def as_exported(p):
    """p with the values that the exported bf16 checkpoint has, still fp32."""
    return {n: t.detach().clone() if n.endswith(FP32_NAMES) else t.detach().to(torch.bfloat16).float() for n, t in p.items()}
