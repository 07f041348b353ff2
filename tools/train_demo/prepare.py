# SPDX-License-Identifier: Apache-2.0
"""Writes what stands beside the weights before training: tokenizer, template, processor files, and the eval sets.

    python3 tools/train_demo/prepare.py            (into models/demo-gdn-vl and models/demo-kda)
"""

import argparse
import json
import os
import random

import arithmetic
import batches
import pictures
import recall
import vocabulary
from split import is_test

COUNT = 300
MODELS = {"gdn": "demo-gdn-vl", "kda": "demo-kda"}


def arithmetic_items(seed):
    rng, seen, items = random.Random(seed), set(), []
    while len(items) < COUNT:
        question, answer, chain = arithmetic.make(rng)
        if is_test(chain) and chain not in seen:
            seen.add(chain)
            items.append({"question": question, "answer": answer, "images": []})
    return items


def recall_items(seed, encode, working):
    """Lengths spread evenly (by logarithm) from about 100 to 4,000 tokens."""
    rng, items = random.Random(seed), []
    while len(items) < COUNT:
        target = int(100 * 40**(len(items) / (COUNT - 1)))
        text, asks = recall.make(rng, max(3, (target - 30) // 12), 1, True, working)
        question, answer, _ = asks[0]
        if len(encode(text + question)) <= 4040:
            items.append({"question": text + question, "answer": answer, "images": []})
    return items


def picture_items(seed, directory):
    rng, items = random.Random(seed), []
    os.makedirs(os.path.join(directory, "eval", "images"), exist_ok=True)
    while len(items) < COUNT:
        images, asks = pictures.make(rng, True)
        names = []
        for k, image in enumerate(images):
            names.append(f"eval/images/{len(items):03d}{'ab'[k] if len(images) > 1 else ''}.png")
            image.save(os.path.join(directory, names[-1]), optimize=True)
        items.append({"question": asks[0][0], "answer": asks[0][1], "images": names})
    return items


def demo_picture(seed, directory):
    """The picture that `make demo` asks about: a scene of the test side with four shapes of four kinds."""
    rng = random.Random(seed)
    while True:
        image, objects = pictures.shapes_scene(rng, True)
        if image.size == (160, 128) and len(objects) == 4 and len({o[1] for o in objects}) == 4 and len({o[2] for o in objects}) == 4:
            image.save(os.path.join(directory, "demo.png"), optimize=True)
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="models")
    parser.add_argument("--seed", type=int, default=20261130)
    args = parser.parse_args()
    for family, name in MODELS.items():
        directory = os.path.join(args.models, name)
        vocabulary.write_tokenizer(family, directory)
        from tokenizers import Tokenizer
        encode = Tokenizer.from_file(os.path.join(directory, "tokenizer.json")).encode
        os.makedirs(os.path.join(directory, "eval"), exist_ok=True)
        sets = {"arithmetic": arithmetic_items(args.seed), "recall": recall_items(args.seed + 1, lambda t: encode(t).ids, batches.RECALL_WORKING[family])}
        if family == "gdn":
            sets["images"] = picture_items(args.seed + 2, directory)
            demo_picture(args.seed + 3, directory)
        for kind, items in sets.items():
            with open(os.path.join(directory, "eval", kind + ".jsonl"), "w", encoding="utf-8") as f:
                f.writelines(json.dumps(item) + "\n" for item in items)
        print(directory, {k: len(v) for k, v in sets.items()})


if __name__ == "__main__":
    main()
