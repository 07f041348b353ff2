# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/vision: small random vision-language checkpoints and what transformers computes with them.

    python3 tools/golden/make_vision.py --out tests/golden/vision [--only qwen3_5]

Each directory holds a fp32 checkpoint, its processor files, and golden.safetensors. Pictures are formulas
(vision_images.py), so a case stores numbers only:
  <case>.items [n, 6]      kind (0 image, 1 video), width, height, seed of the first frame, frames, 100 * frames per second
  <case>.ids [T]           with one placeholder per feature
  <case>.grids [n, 3]; <case>.sums [n]   patches; sum of |pixel values| of each item
  <case>.positions [3, T]; <case>.delta [1]
  <case>.features [levels, tokens, H]    all items, in their order; level 0, then DeepStack
  <case>.rows [k]; <case>.logits [k, V]
"""

import argparse
import json
import os

import numpy as np
import torch
import transformers
from PIL import Image

from common import deterministic, prompt, randomise, save_checkpoint, store
from vision_images import picture

VOCAB = 320
IMAGE, VIDEO, START, END = VOCAB - 4, VOCAB - 5, VOCAB - 3, VOCAB - 2
TOKENS = dict(image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END)

# (width, height, seed); a video adds frames and frames per second
CASES = {
    "one": [12, ("image", 100, 70, 1), 5],
    "three": [3, ("image", 33, 64, 2), 4, ("image", 200, 30, 3), 2, ("image", 64, 64, 4), 6],
    "sizes": [2, ("image", 1, 1, 5), 3, ("image", 28, 28, 6), 1, ("image", 56, 2800, 7), 4, ("image", 1000, 37, 8), 2],
    "grid": [1, ("image", 32, 32, 9), 1, ("image", 64, 32, 10), 1, ("image", 72, 40, 11), 1],
    "video": [4, ("video", 40, 28, 12, 5, 3.0), 3, ("image", 50, 40, 13), 4],
}


def text_common(**more):
    return dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
                rms_norm_eps=1e-6, max_position_embeddings=4096, tie_word_embeddings=True, eos_token_id=VOCAB - 1) | more


EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24)


def qwen3_5(moe=False):
    layers = ["linear_attention", "full_attention"]
    text = text_common(num_hidden_layers=2, layer_types=layers, head_dim=32, linear_num_key_heads=2,
                       linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=16,
                       linear_conv_kernel_dim=4,
                       rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25,
                                        "mrope_section": [2, 1, 1], "mrope_interleaved": True})
    vision = dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=8, out_hidden_size=64,
                  num_position_embeddings=36)
    if moe:
        config = transformers.Qwen3_5MoeConfig(text_config=text | EXPERTS | {"shared_expert_intermediate_size": 24},
                                               vision_config=vision, tie_word_embeddings=True, **TOKENS)
        return transformers.Qwen3_5MoeForConditionalGeneration(config)
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True, **TOKENS)
    return transformers.Qwen3_5ForConditionalGeneration(config)


def qwen3_vl(moe=False):
    text = text_common(num_hidden_layers=3, head_dim=16,
                       rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2],
                                        "mrope_interleaved": True})
    vision = dict(depth=3, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=8, out_hidden_size=64,
                  num_position_embeddings=36, deepstack_visual_indexes=[0, 2])
    if moe:
        config = transformers.Qwen3VLMoeConfig(text_config=text | EXPERTS | {"mlp_only_layers": [1], "decoder_sparse_step": 1},
                                               vision_config=vision, tie_word_embeddings=True, **TOKENS)
        return transformers.Qwen3VLMoeForConditionalGeneration(config)
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **TOKENS)
    return transformers.Qwen3VLForConditionalGeneration(config)


def qwen2_5_vl():
    text = text_common(num_hidden_layers=2,
                       rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]})
    vision = dict(depth=3, hidden_size=32, intermediate_size=40, num_heads=2, patch_size=4, out_hidden_size=64,
                  window_size=32, fullatt_block_indexes=[1], tokens_per_second=2)
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **TOKENS)
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


FAMILIES = {"qwen3_5": qwen3_5, "qwen3_vl": qwen3_vl, "qwen2_5_vl": qwen2_5_vl, "qwen3_vl_moe": lambda: qwen3_vl(True),
            "qwen3_5_moe": lambda: qwen3_5(True)}
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
HALF = ([0.5] * 3, [0.5] * 3)


def processors(family, model, directory):
    """Writes the processor files; returns what this script needs of them."""
    vision = model.config.vision_config
    factor = vision.patch_size * 2
    mean, std = CLIP if family == "qwen2_5_vl" else HALF
    cells = 100 if family == "qwen2_5_vl" else 40
    image = {"size": {"shortest_edge": 4 * factor**2, "longest_edge": cells * factor**2},
             "patch_size": vision.patch_size, "temporal_patch_size": 2, "merge_size": 2, "image_mean": mean,
             "image_std": std, "image_processor_type": "Qwen2VLImageProcessor"}
    video = image | {"size": {"shortest_edge": 8 * factor**2, "longest_edge": cells * factor**2}}
    for name, value in (("preprocessor_config.json", image), ("video_preprocessor_config.json", video)):
        with open(os.path.join(directory, name), "w") as f:
            json.dump(value, f, indent=1)
    return image, video


def process_image(item, c):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    kwargs = {k: v for k, v in c.items() if k != "image_processor_type"}
    out = Qwen2VLImageProcessorPil(**kwargs)(images=[Image.fromarray(picture(*item[1:4]))], return_tensors="pt")
    return out["pixel_values"], out["image_grid_thw"][0]


def process_video(item, family, c):
    """The video processors need torchvision; their steps, with the torch kernel behind its resize."""
    _, width, height, seed, frames, _ = item
    low, high = c["size"]["shortest_edge"], c["size"]["longest_edge"]
    factor = c["patch_size"] * 2
    if family == "qwen2_5_vl":
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
        h, w = smart_resize(height, width, factor, low, high)
    else:
        from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize
        h, w = smart_resize(frames, height, width, 2, factor, low, high)
    x = torch.from_numpy(np.stack([picture(width, height, seed + i) for i in range(frames)])).permute(0, 3, 1, 2)
    x = torch.nn.functional.interpolate(x, (h, w), mode="bicubic", antialias=True)
    mean = torch.tensor(c["image_mean"])[None, :, None, None]
    std = torch.tensor(c["image_std"])[None, :, None, None]
    x = ((x.double() * (1 / 255)).float() - mean) / std
    if frames % 2:
        x = torch.cat([x, x[-1:]])
    p = c["patch_size"]
    t, gh, gw = len(x) // 2, h // p, w // p
    x = x.view(t, 2, 3, gh // 2, 2, p, gw // 2, 2, p).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return x.reshape(t * gh * gw, -1).contiguous(), torch.tensor([t, gh, gw])


@torch.no_grad()
def run_case(model, family, name, segments, image_config, video_config, seed):
    ids, items, pixels, grids = [], [], [[], []], [[], []]
    order, seconds = [], []
    for i, s in enumerate(segments):
        if isinstance(s, int):
            ids += prompt(s, VOCAB - 8, seed + 100 * i)
            continue
        kind = int(s[0] == "video")
        values, grid = process_video(s, family, video_config) if kind else process_image(s, image_config)
        pixels[kind].append(values)
        grids[kind].append(grid)
        frames, fps = (s[4], s[5]) if kind else (1, 0)
        items.append([kind, *s[1:4], frames, int(100 * fps)])
        order.append((kind, len(grids[kind]) - 1))
        t, h, w = grid.tolist()
        if kind and family != "qwen2_5_vl":
            for g in range(t):  # a time, then the group's placeholders
                ids += prompt(2, VOCAB - 8, seed + 7 * g) + [START] + [VIDEO] * (h * w // 4) + [END]
        else:
            ids += [START] + [VIDEO if kind else IMAGE] * (t * h * w // 4) + [END]
        if kind:
            seconds.append(2 / fps)
    t = torch.tensor([ids])
    types = (t == IMAGE).int() + 2 * (t == VIDEO).int()
    kwargs = dict(mm_token_type_ids=types)
    if grids[0]:
        kwargs["image_grid_thw"] = torch.stack(grids[0])
    if grids[1]:
        kwargs["video_grid_thw"] = torch.stack(grids[1])
        if family == "qwen2_5_vl":
            kwargs["second_per_grid_ts"] = torch.tensor(seconds)
    positions, delta = model.model.get_rope_index(t, **kwargs)
    if grids[0]:
        kwargs["pixel_values"] = torch.cat(pixels[0])
    if grids[1]:
        kwargs["pixel_values_videos"] = torch.cat(pixels[1])
    logits = model(input_ids=t, logits_to_keep=0, **kwargs).logits[0].float()
    levels = []
    for kind, index in order:
        out = model.model.visual(pixels[kind][index], grid_thw=grids[kind][index][None])
        extra = getattr(out, "deepstack_features", None) or []
        levels.append(torch.stack([out.pooler_output, *extra]))
    last = [len(ids) - 1, len(ids) - 2]
    inside = [i for i, x in enumerate(ids) if x in (IMAGE, VIDEO)]
    rows = sorted({0, inside[0], inside[len(inside) // 2], inside[-1], inside[-1] + 1, *last})
    ordered = [pixels[kind][index] for kind, index in order]
    return {f"{name}.items": torch.tensor(items, dtype=torch.int32), f"{name}.ids": t[0].int(),
            f"{name}.grids": torch.stack([grids[k][i] for k, i in order]).int(),
            f"{name}.sums": torch.tensor([float(p.double().abs().sum()) for p in ordered]),
            f"{name}.positions": positions[:, 0].int(), f"{name}.delta": delta.reshape(-1).int(),
            f"{name}.features": torch.cat(levels, dim=1).float(), f"{name}.rows": torch.tensor(rows, dtype=torch.int32),
            f"{name}.logits": logits[rows].clone()}


def write_layouts(path):
    """windows.txt: `grids T H W ...`, then `cells ...` and `lengths ...` of Qwen2.5-VL's windows (112 pixels, patches of 14)."""
    from transformers.vision_utils import get_vision_window_index
    with open(path, "w") as f:
        for grids in ([[1, 4, 4]], [[1, 8, 8]], [[1, 10, 14]], [[2, 6, 6]], [[1, 2, 2]], [[1, 18, 2], [3, 8, 10]],
                      [[1, 36, 74]], [[1, 4, 200]]):
            cells, ends = get_vision_window_index(torch.tensor(grids), 2, 112, 14)
            row = lambda name, values: f.write(name + " " + " ".join(map(str, values)) + "\n")
            row("grids", sum(grids, []))
            row("cells", cells.tolist())
            row("lengths", (ends[1:] - ends[:-1]).tolist())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", choices=sorted(FAMILIES))
    args = parser.parse_args()
    deterministic()
    write_layouts(os.path.join(args.out, "windows.txt"))
    for seed, (family, make) in enumerate(FAMILIES.items(), 21):
        if args.only not in (None, family):
            continue
        directory = os.path.join(args.out, family)
        os.makedirs(directory, exist_ok=True)
        model = make()
        randomise(model, seed)
        save_checkpoint(model.float(), directory)
        # What is compared is the saved file, read back.
        loaded = type(model).from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        image_config, video_config = processors(family, loaded, directory)
        tensors = {}
        for name, segments in CASES.items():
            tensors |= run_case(loaded, family, name, segments, image_config, video_config, seed)
        store(os.path.join(directory, "golden.safetensors"), tensors,
              {"seed": seed, "transformers": transformers.__version__})


if __name__ == "__main__":
    main()
