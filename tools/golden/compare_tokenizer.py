#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our tokenizer with Hugging Face tokenizers and tiktoken on many random texts.

Usage: compare_tokenizer.py BENCH [--texts N] [--seed S] [--directory DIR]
BENCH is build/<preset>/tests/tokenizer_bench. Without --directory the small tokenizers of make_tokenizer.py are
built in a temporary folder; with it, DIR/tokenizer.json (not tiktoken.model) is compared. Prints every
difference, and one line with the numbers; exit status 1 when there is any difference.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import make_tokenizer
from tokenizers import Tokenizer


def texts_of(count, seed):
    rng = random.Random(seed)
    yield from make_tokenizer.random_texts(count // 2, rng)
    yield from make_tokenizer.any_texts(count // 4, rng)
    # Bases with several marks, for normalisation.
    marks = [c for c in map(chr, range(0x300, 0x1F000)) if unicodedata.combining(c) or unicodedata.category(c) == "Mn"]
    bases = [c for c in map(chr, range(0x41, 0x1F000)) if unicodedata.category(c) in ("Ll", "Lo", "Lu", "So")]
    for _ in range(count - count // 2 - count // 4):
        yield "".join(rng.choice(bases if rng.random() < 0.4 else marks) for _ in range(rng.randint(2, 12)))


def compare(name, directory, reference, bench, texts):
    lines = "".join(text.encode().hex() + "\n" for text in texts)
    run = subprocess.run([bench, directory, "--hex"], input=lines, capture_output=True, text=True, check=True)
    different = 0
    for text, line in zip(texts, run.stdout.splitlines(), strict=True):
        ids_text, decoded_text = line.split("|")
        ids = [int(i) for i in ids_text.split()]
        want = reference.encode(text)
        decoded = bytes.fromhex(decoded_text).decode()
        if ids != want or decoded != reference.decode(want, True):
            different += 1
            if different <= 20:
                print(f"{name}: {ascii(text)}\n  ours      {ids}\n  reference {want}")
    print(f"{name}: {len(texts)} texts, {different} different")
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench")
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path)
    args = parser.parse_args()
    texts = list(texts_of(args.texts, args.seed))
    different = 0
    if args.directory is not None:
        reference = make_tokenizer.HuggingFace(Tokenizer.from_file(str(args.directory / "tokenizer.json")))
        different += compare(args.directory.name, args.directory, reference, args.bench, texts)
    else:
        with tempfile.TemporaryDirectory() as folder:
            for name, reference in make_tokenizer.build(Path(folder)).items():
                different += compare(name, Path(folder) / name, reference, args.bench, texts)
    sys.exit(different != 0)


if __name__ == "__main__":
    main()
