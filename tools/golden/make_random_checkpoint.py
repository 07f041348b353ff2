# SPDX-License-Identifier: Apache-2.0
"""Writes random Qwen3.5-shaped bf16 checkpoints: for speed measurement, and the bundled demo model.

    python3 tools/golden/make_random_checkpoint.py --shape 0.8b --out /tmp/random-0.8b     (1.5 GB, no tokenizer)
    python3 tools/golden/make_random_checkpoint.py --shape demo --out models/demo-random-gdn

Speed does not depend on the values, only the shapes are those of the released models. Needs torch and safetensors;
`demo` also needs tokenizers (its vocabulary is trained on this repository's own text).
"""

import argparse
import json
import os
import subprocess

import torch
from safetensors.torch import save_file

# Shapes: Qwen3.5 text models; `layers` hidden layers, every fourth one full attention.
SHAPES = {
    "demo": dict(vocab_size=1024, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=2,
                 num_key_value_heads=1, head_dim=64, linear_num_key_heads=1, linear_num_value_heads=2),
    "0.5b": dict(vocab_size=151936, hidden_size=896, intermediate_size=3072, num_hidden_layers=24,
                 num_attention_heads=8, num_key_value_heads=2, head_dim=256, linear_num_key_heads=14,
                 linear_num_value_heads=14),
    "0.8b": dict(vocab_size=248320, hidden_size=1024, intermediate_size=3584, num_hidden_layers=24,
                 num_attention_heads=8, num_key_value_heads=2, head_dim=256, linear_num_key_heads=16,
                 linear_num_value_heads=16),
    "2b": dict(vocab_size=248320, hidden_size=2048, intermediate_size=6144, num_hidden_layers=24,
               num_attention_heads=8, num_key_value_heads=2, head_dim=256, linear_num_key_heads=16,
               linear_num_value_heads=16),
}

PRETOKENIZER = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BASE_TOKENS = 1000
# (content, special): the names of the Qwen3.5 vocabulary that templates and parsers look for.
ADDED = [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True), ("<|vision_start|>", True),
         ("<|vision_end|>", True), ("<|vision_pad|>", True), ("<|image_pad|>", True), ("<|video_pad|>", True),
         ("<tool_call>", False), ("</tool_call>", False), ("<tool_response>", False), ("</tool_response>", False),
         ("<think>", False), ("</think>", False)]

TEMPLATE = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content or [] %}
            {%- if part.type == 'text' %}
                {{- part.text }}
            {%- else %}
                {{- raise_exception('this model reads text only') }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

README = """# demo-random-gdn

A very small model with **random weights**: its answers are nonsense. It exists so that a fresh checkout can run the
whole path - tokenizer, chat template, Gated DeltaNet and attention layers, sampling, detokenizer - without a download.

Shape: Qwen3.5 (`Qwen3_5ForCausalLM`), 4 layers (3 Gated DeltaNet, 1 full attention), hidden size 128, delta-rule heads
of 128 x 128, bf16. The tokenizer is a byte-level BPE of 1000 entries with the Qwen3.5 pre-tokenizer, trained on this
project's own text. Made by `tools/golden/make_random_checkpoint.py --shape demo`; same licence as the project.
"""


def config(shape, eos):
    layers = shape["num_hidden_layers"]
    return {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", **shape, "dtype": "bfloat16",
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False, "attn_output_gate": True,
        "max_position_embeddings": 262144, "tie_word_embeddings": True, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "eos_token_id": eos,
        "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(layers)],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
                            "mrope_interleaved": True,
                            "mrope_section": [11, 11, 10] if shape["head_dim"] == 256 else [3, 3, 2]},
    }


def tensors(c, seed):
    g = torch.Generator().manual_seed(seed)

    def linear(out, inner, gain=1.0):
        return (torch.randn(out, inner, generator=g) * (gain / inner**0.5)).to(torch.bfloat16)

    def around(mean, std, *shape):
        return (mean + std * torch.randn(*shape, generator=g)).to(torch.bfloat16)

    h, inter, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    kd = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    hv = c["linear_num_value_heads"]
    vd = hv * c["linear_value_head_dim"]
    out = {"model.embed_tokens.weight": linear(c["vocab_size"], h, gain=2.0), "model.norm.weight": around(0, 0.2, h)}
    for i, kind in enumerate(c["layer_types"]):
        p = f"model.layers.{i}."
        if kind == "linear_attention":
            a = p + "linear_attn."
            out[a + "in_proj_qkv.weight"] = linear(2 * kd + vd, h)
            out[a + "in_proj_z.weight"] = linear(vd, h)
            out[a + "in_proj_b.weight"] = linear(hv, h)
            out[a + "in_proj_a.weight"] = linear(hv, h)
            out[a + "conv1d.weight"] = around(0, 0.5, 2 * kd + vd, 1, 4)
            out[a + "dt_bias"] = around(-2, 1.5, hv)
            out[a + "A_log"] = torch.log(torch.empty(hv).uniform_(0.01, 8, generator=g)).to(torch.bfloat16)
            out[a + "norm.weight"] = around(1, 0.2, c["linear_value_head_dim"])
            out[a + "out_proj.weight"] = linear(h, vd)
        else:
            a = p + "self_attn."
            out[a + "q_proj.weight"] = linear(2 * c["num_attention_heads"] * d, h)
            out[a + "k_proj.weight"] = linear(c["num_key_value_heads"] * d, h)
            out[a + "v_proj.weight"] = linear(c["num_key_value_heads"] * d, h)
            out[a + "o_proj.weight"] = linear(h, c["num_attention_heads"] * d)
            out[a + "q_norm.weight"] = around(0, 0.2, d)
            out[a + "k_norm.weight"] = around(0, 0.2, d)
        out[p + "mlp.gate_proj.weight"] = linear(inter, h)
        out[p + "mlp.up_proj.weight"] = linear(inter, h)
        out[p + "mlp.down_proj.weight"] = linear(h, inter)
        out[p + "input_layernorm.weight"] = around(0, 0.2, h)
        out[p + "post_attention_layernorm.weight"] = around(0, 0.2, h)
    return out


def corpus():
    """This repository's own text."""
    names = subprocess.run(["git", "ls-files", "*.md", "*.h", "*.cc", "*.py", "*.cmake"], capture_output=True,
                           text=True, check=True).stdout.split()
    for name in names:
        with open(name, encoding="utf-8") as f:
            yield f.read()


def write_tokenizer(directory):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRETOKENIZER), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=BASE_TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    if t.get_vocab_size() != BASE_TOKENS:
        raise SystemExit(f"the corpus gave {t.get_vocab_size()} tokens instead of {BASE_TOKENS}")
    for content, special in ADDED:
        token = AddedToken(content, special=special, normalized=False)
        (t.add_special_tokens if special else t.add_tokens)([token])
    t.save(os.path.join(directory, "tokenizer.json"))
    ids = {content: t.token_to_id(content) for content, _ in ADDED}
    write_json(directory, "tokenizer_config.json", {
        "tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None,
        "unk_token": None, "clean_up_tokenization_spaces": False, "model_max_length": 262144})
    return ids


def write_json(directory, name, value):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    eos = SHAPES[args.shape]["vocab_size"] - 1
    if args.shape == "demo":
        ids = write_tokenizer(args.out)
        eos = ids["<|endoftext|>"]
        write_json(args.out, "generation_config.json", {
            "do_sample": True, "temperature": 1.0, "top_k": 20, "top_p": 0.95, "bos_token_id": eos, "pad_token_id": eos,
            "eos_token_id": [ids["<|im_end|>"], eos]})
        for name, text in (("chat_template.jinja", TEMPLATE), ("README.md", README)):
            with open(os.path.join(args.out, name), "w", encoding="utf-8") as f:
                f.write(text)
    c = config(SHAPES[args.shape], eos)
    write_json(args.out, "config.json", c)
    path = os.path.join(args.out, "model.safetensors")
    weights = tensors(c, args.seed)
    if args.shape == "demo":
        # The head is tied: near-zero rows keep the demo from drawing an end token or a row without text at once.
        weights["model.embed_tokens.weight"][BASE_TOKENS:] *= 0.1
    save_file(weights, path, metadata={"format": "pt"})
    os.chmod(path, 0o644)
    print(args.out, sum(os.path.getsize(os.path.join(args.out, f)) for f in os.listdir(args.out)), "bytes")


if __name__ == "__main__":
    main()
