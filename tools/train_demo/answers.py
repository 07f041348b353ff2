# SPDX-License-Identifier: Apache-2.0
"""What counts as a right answer: the value behind the last `####`."""

import json
import os


def value(text):
    """The text behind the last '####' up to the end of its line, or None."""
    if "####" not in text:
        return None
    rest = text.rsplit("####", 1)[1].strip()
    return rest.splitlines()[0].strip() if rest else ""


def right(said, expected):
    got, want = value(said), value(expected)
    return got is not None and got == want


def read_items(path):
    """Items of one eval file: dictionaries with question, answer, images."""
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def eval_files(model):
    folder = os.path.join(model, "eval")
    return {name[:-len(".jsonl")]: os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".jsonl")}
