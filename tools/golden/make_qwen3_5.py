# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/qwen3_5: small random Qwen3.5 checkpoints and what transformers computes with them.

    python3 tools/golden/make_qwen3_5.py --out tests/golden/qwen3_5

Checkpoints: `text` (fp32, untied head, text-only class), `text_bf16` (bf16, tied), `vl` (fp32, tied, vision tower).
Each directory gets golden.safetensors, as parity.py has it, and
  image.*                       `vl` only: ids, pixel_values, grid, mRoPE positions, logits of a prompt with an image
"""

import argparse
import os

import torch

from common import PROMPT_LENGTHS, deterministic, prompt, randomise, save_checkpoint
from parity import run
from transformers import (Qwen3_5Config, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration, Qwen3_5TextConfig)

VOCAB = 512
LAYERS = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]


def text_fields(tied):
    return dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=len(LAYERS),
                layer_types=LAYERS, num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6,
                linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=16,
                linear_conv_kernel_dim=4, max_position_embeddings=4096, tie_word_embeddings=tied, eos_token_id=VOCAB - 1,
                rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25,
                                 "mrope_section": [2, 1, 1], "mrope_interleaved": True})


def vl_config():
    vision = dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=8, out_hidden_size=64,
                  num_position_embeddings=16)
    return Qwen3_5Config(text_config=text_fields(True), vision_config=vision, tie_word_embeddings=True,
                         image_token_id=VOCAB - 4, video_token_id=VOCAB - 5, vision_start_token_id=VOCAB - 3,
                         vision_end_token_id=VOCAB - 2)


@torch.no_grad()
def image_prompt(model, seed):
    """20 text tokens, one image of 4 x 6 patches (6 tokens), 9 text tokens."""
    g = torch.Generator().manual_seed(seed)
    c = model.config
    grid = torch.tensor([[1, 4, 6]])
    pixels = torch.randn(24, 3 * 2 * 8 * 8, generator=g)
    ids = (prompt(20, VOCAB - 8, seed) + [c.vision_start_token_id] + [c.image_token_id] * 6 + [c.vision_end_token_id] +
           prompt(9, VOCAB - 8, seed))
    t = torch.tensor([ids])
    types = (t == c.image_token_id).int()
    positions, delta = model.model.get_rope_index(t, mm_token_type_ids=types, image_grid_thw=grid)
    out = model(input_ids=t, pixel_values=pixels, image_grid_thw=grid, mm_token_type_ids=types, logits_to_keep=0)
    features = model.get_image_features(pixels, grid)
    features = getattr(features, "pooler_output", features)
    return {"image.ids": t[0].int(), "image.pixel_values": pixels, "image.grid": grid[0].int(),
            "image.positions": positions[:, 0].int(), "image.rope_delta": delta.reshape(-1).int(),
            "image.features": torch.cat(list(features)).float(), "image.logits": out.logits[0, -4:].float()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    deterministic()
    made = [("text", Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text_fields(False))), torch.float32, 11),
            ("text_bf16", Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text_fields(True))), torch.bfloat16, 12),
            ("vl", Qwen3_5ForConditionalGeneration(vl_config()), torch.float32, 13)]
    for name, model, dtype, seed in made:
        directory = os.path.join(out, name)
        os.makedirs(directory, exist_ok=True)
        randomise(model, seed)
        save_checkpoint(model.to(dtype), directory)
        # What is compared is the saved file, read back.
        loaded = type(model).from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()
        linear = [i for i, kind in enumerate(LAYERS) if kind == "linear_attention"]
        run(loaded, directory, seed, PROMPT_LENGTHS, VOCAB - 8, linear,
            more=(lambda m, seed=seed: image_prompt(m, seed)) if name == "vl" else None)


if __name__ == "__main__":
    main()
