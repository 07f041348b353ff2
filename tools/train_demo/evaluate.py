# SPDX-License-Identifier: Apache-2.0
"""Accuracy of a demo model on its eval sets with transformers (fp32, greedy), and the answers of other programs against it.

    python3 tools/train_demo/evaluate.py models/demo-kda [--set arithmetic] [--count 300] [--device cuda] [--save answers.json]
    python3 tools/train_demo/evaluate.py models/demo-kda --program build/release/fluvial [--flags "..."] [--against answers.json]
"""

import argparse
import json
import os
import shlex
import subprocess
import tempfile
import time

import answers

LIMITS = {"arithmetic": 64, "images": 112, "recall": 12}


def prompt_messages(item):
    content = [{"type": "image"} for _ in item.get("images", [])] + [{"type": "text", "text": item["question"]}]
    return [{"role": "user", "content": content if item.get("images") else item["question"]}]


class Transformers:

    def __init__(self, model, device, dtype):
        import torch
        import transformers
        self.torch, self.folder, self.device = torch, model, device
        with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        self.tokenizer.padding_side = "left"
        self.pictures = config["model_type"] == "qwen3_5"
        cls = getattr(transformers, config["architectures"][0])
        self.model = cls.from_pretrained(model, dtype=getattr(torch, dtype), attn_implementation="eager").to(device).eval()
        self.processor = transformers.AutoImageProcessor.from_pretrained(model) if self.pictures else None
        self.image_token = config.get("image_token_id")

    def answer(self, items, limit):
        """Texts of one batch (left padding)."""
        from PIL import Image
        torch, texts, extra, images = self.torch, [], {}, []
        for item in items:
            text = self.tokenizer.apply_chat_template(prompt_messages(item), tokenize=False, add_generation_prompt=True)
            if item.get("images"):
                opened = [Image.open(os.path.join(self.folder, n)).convert("RGB") for n in item["images"]]
                grids = self.processor(images=opened, return_tensors="pt")["image_grid_thw"]
                for g in grids:
                    text = text.replace("<|image_pad|>", "<|placeholder|>" * (int(g.prod()) // 4), 1)
                text = text.replace("<|placeholder|>", "<|image_pad|>")
                images += opened
            texts.append(text)
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs.pop("token_type_ids", None)
        if images:
            extra = dict(self.processor(images=images, return_tensors="pt"))
        if self.pictures:
            extra["mm_token_type_ids"] = (inputs["input_ids"] == self.image_token).int()
        inputs = {k: v.to(self.device) for k, v in {**inputs, **extra}.items()}
        with torch.no_grad():
            out = self.model.generate(**inputs, max_new_tokens=limit, do_sample=False)
        return self.tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)


def with_transformers(args, kind, items):
    runner = with_transformers.runner = getattr(with_transformers, "runner", None) or Transformers(args.model, args.device, args.dtype)
    order = sorted(range(len(items)), key=lambda i: len(items[i]["question"]))
    said, at = [None] * len(items), 0
    while at < len(order):
        longest = len(items[order[min(at + args.batch, len(order)) - 1]]["question"])
        n = max(1, min(args.batch, args.batch * 1500 // max(1, longest)))
        group = order[at:at + n]
        for i, text in zip(group, runner.answer([items[i] for i in group], LIMITS[kind])):
            said[i] = text
        at += n
    return said


def with_program(args, kind, items):
    """`fluvial run` once per item, the conversation through a file."""
    said = []
    for item in items:
        images = [{"type": "image", "image": os.path.abspath(os.path.join(args.model, n))} for n in item.get("images", [])]
        content = images + [{"type": "text", "text": item["question"]}] if images else item["question"]
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as f:
            json.dump({"messages": [{"role": "user", "content": content}], "add_generation_prompt": True}, f)
            f.flush()
            command = [args.program, "run", args.model, "--messages", f.name, "--max-tokens", str(LIMITS[kind]), "--temperature", "0", *shlex.split(args.flags)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        said.append(done.stdout.rstrip("\n"))
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--set", action="append", help="arithmetic, recall, images; default: all the model has")
    parser.add_argument("--count", type=int, default=0, help="only so many items, spread evenly")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--program", help="path of fluvial: ask it instead of transformers")
    parser.add_argument("--flags", default="", help="more options for the program")
    parser.add_argument("--save", help="write the answers to this file")
    parser.add_argument("--against", help="compare with answers saved before, text for text")
    args = parser.parse_args()
    files = answers.eval_files(args.model)
    saved = {}
    before = json.load(open(args.against, encoding="utf-8")) if args.against else {}
    for kind in args.set or files:
        items = answers.read_items(files[kind])
        if args.count:
            items = items[::max(1, len(items) // args.count)][:args.count]
        begin = time.time()
        said = (with_program if args.program else with_transformers)(args, kind, items)
        right = sum(answers.right(t, i["answer"]) for t, i in zip(said, items))
        line = f"{kind}: {right} of {len(items)} right ({100 * right / len(items):.1f} %), {time.time() - begin:.0f} s"
        if kind in before and len(before[kind]) == len(said):
            same = sum(a.strip() == b.strip() for a, b in zip(said, before[kind]))
            line += f"; {same} texts equal to {args.against}"
            for item, a, b in zip(items, said, before[kind]):
                if a.strip() != b.strip():
                    line += f"\n  differs: {item['question'][-70:]!r}: {a!r} against {b!r}"
        print(line, flush=True)
        saved[kind] = said
    if args.save:
        with open(args.save, "w", encoding="utf-8") as f:
            json.dump(saved, f)


if __name__ == "__main__":
    main()
