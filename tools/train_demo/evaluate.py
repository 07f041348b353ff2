# SPDX-License-Identifier: Apache-2.0
"""Accuracy of a demo model on its eval sets with transformers (fp32, greedy), and the answers of other programs against it.

    python3 tools/train_demo/evaluate.py models/demo-kda [--set arithmetic] [--count 300] [--device cuda] [--save answers.json]
    python3 tools/train_demo/evaluate.py models/demo-kda --program build/release/fluvial [--flags "..."] --save answers.json
    python3 tools/train_demo/evaluate.py models/demo-kda --verify answers.json

--verify asks transformers whether it would greedily write the saved answers: one pass over prompt and answer instead of a pass
per token, and only where a token differs are answers written anew and compared as texts.
"""

import argparse
import json
import os
import shlex
import subprocess
import tempfile
import time

import answers

LIMITS = {"arithmetic": 64, "images": 112, "recall": 32}


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

    def inputs(self, items, said=None):
        """Model inputs of one batch, left padding; with `said`, the answers and the end mark behind the prompts. And their lengths."""
        from PIL import Image
        texts, images = [], []
        for item in items:
            text = self.tokenizer.apply_chat_template(prompt_messages(item), tokenize=False, add_generation_prompt=True)
            opened = [Image.open(os.path.join(self.folder, n)).convert("RGB") for n in item.get("images", [])]
            if opened:
                for g in self.processor(images=opened, return_tensors="pt")["image_grid_thw"]:
                    text = text.replace("<|image_pad|>", "<|placeholder|>" * (int(g.prod()) // 4), 1)
                text = text.replace("<|placeholder|>", "<|image_pad|>")
                images += opened
            texts.append(text)
        tails = [self.tokenizer(t, add_special_tokens=False)["input_ids"] + [self.tokenizer.eos_token_id] for t in said] if said else [[]] * len(items)
        ids = [self.tokenizer(t, add_special_tokens=False)["input_ids"] + tail for t, tail in zip(texts, tails)]
        inputs = dict(self.tokenizer.pad({"input_ids": ids}, return_tensors="pt"))
        if images:
            inputs.update(self.processor(images=images, return_tensors="pt"))
        if self.pictures:
            inputs["mm_token_type_ids"] = (inputs["input_ids"] == self.image_token).int()
        return {k: v.to(self.device) for k, v in inputs.items() if k != "token_type_ids"}, [len(t) for t in tails]

    def answer(self, items, limit):
        """Texts of one batch."""
        inputs, _ = self.inputs(items)
        with self.torch.no_grad():
            out = self.model.generate(**inputs, max_new_tokens=limit, do_sample=False)
        return self.tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)

    def agrees(self, items, said):
        """For every item: whether each token of the answer and its end is the most likely one, and the smallest lead over the second."""
        inputs, lengths = self.inputs(items, said)
        with self.torch.no_grad():
            logits = self.model(**inputs, logits_to_keep=max(lengths) + 1).logits[:, :-1]
        wanted, out = inputs["input_ids"], []
        for row, n in enumerate(lengths):
            best, which = logits[row, -n:].topk(2, -1)
            out.append((bool((which[:, 0] == wanted[row, -n:]).all()), (best[:, 0] - best[:, 1]).min().item()))
        return out


def batched(items, batch):
    """Index groups of similar lengths; fewer items where they are long."""
    order, at = sorted(range(len(items)), key=lambda i: len(items[i]["question"])), 0
    while at < len(order):
        longest = len(items[order[min(at + batch, len(order)) - 1]]["question"])
        n = max(1, min(batch, batch * 1500 // max(1, longest)))
        yield order[at:at + n]
        at += n


def verify(args, kind, items, saved):
    """Replaces answers that transformers would not write by its own. Returns (answers, line for the report)."""
    runner = with_transformers.runner = getattr(with_transformers, "runner", None) or Transformers(args.model, args.device, args.dtype)
    said, odd, lead = list(saved), [], float("inf")
    for group in batched(items, args.batch):
        for i, (same, least) in zip(group, runner.agrees([items[i] for i in group], [saved[i] for i in group])):
            if same:
                lead = min(lead, least)
            else:
                odd.append(i)
    note = f"; {len(items) - len(odd)} answers of {args.verify} are greedy in transformers token by token (smallest lead {lead:.2g})"
    for i in odd:
        said[i] = runner.answer([items[i]], LIMITS[kind])[0]
        if said[i].strip() != saved[i].strip():
            note += f"\n  differs: {items[i]['question'][-70:]!r}: {saved[i]!r}, transformers {said[i]!r}"
    return said, note


def with_transformers(args, kind, items):
    runner = with_transformers.runner = getattr(with_transformers, "runner", None) or Transformers(args.model, args.device, args.dtype)
    said = [None] * len(items)
    for group in batched(items, args.batch):
        for i, text in zip(group, runner.answer([items[i] for i in group], LIMITS[kind])):
            said[i] = text
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
    parser.add_argument("--verify", help="check answers saved before instead of writing all anew")
    parser.add_argument("--against", help="compare with answers saved before, text for text")
    args = parser.parse_args()
    files = answers.eval_files(args.model)
    saved = {}
    before = json.load(open(args.against or args.verify, encoding="utf-8")) if args.against or args.verify else {}
    for kind in args.set or files:
        items = answers.read_items(files[kind])
        if args.count:
            items = items[::max(1, len(items) // args.count)][:args.count]
        begin = time.time()
        note = ""
        if args.verify:
            said, note = verify(args, kind, items, before[kind])
        else:
            said = (with_program if args.program else with_transformers)(args, kind, items)
        right = sum(answers.right(t, i["answer"]) for t, i in zip(said, items))
        line = f"{kind}: {right} of {len(items)} right ({100 * right / len(items):.1f} %), {time.time() - begin:.0f} s{note}"
        if args.against and kind in before and len(before[kind]) == len(said):
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
