#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/tokenizer: small trained tokenizers and what the reference libraries make of awkward texts.

Needs `tokenizers` (0.23) and `tiktoken` (0.14). Usage: make_tokenizer.py OUTPUT_DIRECTORY
The pre-tokenizer patterns are those of the released models; vocabularies are trained here, on text written for
this purpose and on a few files of Python's own library.
"""

import argparse
import base64
import json
import random
import sys
import unicodedata
from pathlib import Path

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SEED = 20261130
MERGES = 1300

QWEN3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
GLM = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
       r"|\s*[\r\n]+|\s+(?!\S)|\s+")
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?" + _UPPER + "*" + _LOWER + "+" + _SUFFIX,
    r"[^\r\n\p{L}\p{N}]?" + _UPPER + "+" + _LOWER + "*" + _SUFFIX,
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])

TEXTS = json.loads((Path(__file__).parent / "tokenizer_texts.json").read_text(encoding="ascii"))


def corpus():
    texts = [line for line in TEXTS["sentences"] for _ in range(3)]
    import argparse as a, json.decoder as j, textwrap as t
    for module in (a, j, t):
        texts += Path(module.__file__).read_text(encoding="utf-8").splitlines(keepends=True)
    return texts


def train(pattern, normalizer, merges=MERGES):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def special(text):
    return AddedToken(text, special=True, normalized=False)


def plain(text):
    return AddedToken(text, special=False, normalized=False)


QWEN_TOKENS = [special(t) for t in (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>")] + [plain(t) for t in (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>")]
GLM_TOKENS = [special(t) for t in (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")] + [
    plain(t) for t in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
                       "<arg_value>", "</arg_value>", "/nothink")]
ODD_TOKENS = [
    AddedToken("<l>", lstrip=True, normalized=False, special=True),
    AddedToken("<r>", rstrip=True, normalized=False),
    AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False),
    AddedToken("word", single_word=True, normalized=False),
    AddedToken("caf\u00e9", normalized=True),
    AddedToken("A\u030angstrom", normalized=True),
    AddedToken("<ab>", normalized=False), AddedToken("<ab><c>", normalized=False), AddedToken("<abc", normalized=False),
    AddedToken("two words", normalized=False), AddedToken("\u00e9t\u00e9", normalized=False),
    AddedToken("\u8bcd", single_word=True, normalized=True),
    AddedToken("<s>", special=True, normalized=False), AddedToken("</s>", special=True, normalized=False),
]
KIMI_NAMES = {0: "[BOS]", 1: "<|im_end|>", 2: "[EOS]", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_system|>",
              17: "<|im_middle|>", 254: "[UNK]", 255: "[PAD]"}
KIMI_PLAIN = {11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>",
              14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>"}


def save(tokenizer, directory, config, merges_as_strings=False, edit=None):
    directory.mkdir(parents=True, exist_ok=True)
    data = json.loads(tokenizer.to_str())
    if merges_as_strings:
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    if edit is not None:
        edit(data)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (directory / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return Tokenizer.from_str(text)


class Kimi:
    """tiktoken plus the wrapper's cutting of long texts and its 256 special ids."""

    def __init__(self, trained, directory):
        to_byte = {}
        extra = 0
        for b in range(256):
            keep = 33 <= b <= 126 or 161 <= b <= 172 or b >= 174
            to_byte[chr(b) if keep else chr(256 + extra)] = b
            extra += not keep
        vocab = trained.get_vocab(with_added_tokens=False)
        ranks = {bytes(to_byte[c] for c in token): rank for token, rank in vocab.items()}
        base = len(ranks)
        assert sorted(ranks.values()) == list(range(base))
        names = {**KIMI_NAMES, **KIMI_PLAIN}
        self.specials = {names.get(i, f"<|reserved_token_{base + i}|>"): base + i for i in range(256)}
        self.skipped = {base + i for i in range(256) if i not in KIMI_PLAIN}
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / "tiktoken.model", "wb") as f:
            for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
                f.write(base64.b64encode(token) + b" %d\n" % rank)
        config = {"added_tokens_decoder": {str(base + i): {"content": n, "lstrip": False, "normalized": False,
                                                           "rstrip": False, "single_word": False,
                                                           "special": i not in KIMI_PLAIN}
                                           for i, n in sorted(names.items())},
                  "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
        (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        self.model = tiktoken.Encoding(name="kimi-golden", pat_str=KIMI, mergeable_ranks=ranks,
                                       special_tokens=self.specials)

    @staticmethod
    def cut(text):
        for start in range(0, len(text), 400_000):
            chunk = text[start:start + 400_000]
            begin, run, space = 0, 0, chunk[0].isspace()
            for i, c in enumerate(chunk):
                if c.isspace() != space:
                    run, space = 1, not space
                    continue
                run += 1
                if run > 25_000:
                    yield chunk[begin:i]
                    begin, run = i, 1
            yield chunk[begin:]

    def encode(self, text):
        return [i for piece in self.cut(text) for i in self.model.encode(piece, allowed_special="all")]

    def encode_plain(self, text):
        return [i for piece in self.cut(text) for i in self.model.encode(piece, disallowed_special=())]

    def decode(self, ids, skip_special_tokens):
        known = [i for i in ids if 0 <= i < self.model.n_vocab]
        return self.model.decode([i for i in known if not (skip_special_tokens and i in self.skipped)])

    def size(self):
        return self.model.n_vocab


class HuggingFace:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def encode_plain(self, text):
        self.tokenizer.encode_special_tokens = True
        ids = self.tokenizer.encode(text).ids
        self.tokenizer.encode_special_tokens = False
        return ids

    def decode(self, ids, skip_special_tokens):
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def size(self):
        return self.tokenizer.get_vocab_size()


def build(directory):
    """name -> reference; writes the tokenizers' files below `directory`."""
    out = {}
    qwen_config = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
                   "clean_up_tokenization_spaces": False}
    qwen3 = train(QWEN3, normalizers.NFC())
    qwen3.add_tokens(QWEN_TOKENS)
    out["qwen3"] = HuggingFace(save(qwen3, directory / "qwen3", qwen_config))
    qwen35 = train(QWEN35, normalizers.NFC())
    qwen35.add_tokens(QWEN_TOKENS)
    out["qwen35"] = HuggingFace(save(qwen35, directory / "qwen35", qwen_config))
    glm = train(GLM, None)
    glm.add_tokens(GLM_TOKENS)
    glm.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    out["glm"] = HuggingFace(save(glm, directory / "glm", {"eos_token": "<|endoftext|>"}, merges_as_strings=True))
    odd = train(GLM, normalizers.NFC(), 600)
    odd.add_tokens(ODD_TOKENS)
    begin, end = odd.token_to_id("<s>"), odd.token_to_id("</s>")
    odd.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", begin), ("</s>", end)])])
    odd.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("--", behavior="isolated", invert=False),
        pre_tokenizers.Split(Regex(r"[^_]+"), behavior="removed", invert=True),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Punctuation(behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])

    def ignore_merges(data):
        data["model"]["ignore_merges"] = True
        data["model"]["merges"] = data["model"]["merges"][:400]

    out["odd"] = HuggingFace(save(odd, directory / "odd", {"bos_token": {"content": "<s>"}}, edit=ignore_merges))
    out["kimi"] = Kimi(train(KIMI, None), directory / "kimi")
    return out


def random_texts(count, rng):
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 12)):
            if rng.random() < 0.08:
                parts.append(rng.choice(TEXTS["specials"]))
                continue
            pool = rng.choice(TEXTS["pools"])
            parts.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 7))))
        yield "".join(parts)


def any_texts(count, rng):
    """Characters from all of Unicode, unassigned ones included."""
    for _ in range(count):
        out = []
        for _ in range(rng.randint(1, 30)):
            top = rng.choice([0x80, 0x250, 0x800, 0x3100, 0x10000, 0x20000, 0x110000])
            c = rng.randrange(top)
            out.append(chr(c) if not 0xD800 <= c < 0xE000 else " ")
        yield "".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    root = parser.parse_args().output
    references = build(root)
    rng = random.Random(SEED)
    texts = TEXTS["hand_written"] + list(random_texts(110, rng)) + list(any_texts(40, rng))
    cases = []
    for text in texts:
        case = {"text": text, "ids": {}, "plain": {}, "decoded": {}}
        for name, reference in references.items():
            ids = reference.encode(text)
            case["ids"][name] = ids
            if (without := reference.encode_plain(text)) != ids:
                case["plain"][name] = without
            for skip in (False, True):
                if (decoded := reference.decode(ids, skip)) != text:
                    case["decoded"].setdefault(name, {})["skip" if skip else "keep"] = decoded
        cases.append(case)
    long_cases = []
    for unit, count, tail in TEXTS["long"]:  # described instead of stored
        text = unit * count + tail
        case = {"unit": unit, "count": count, "tail": tail, "ids": {}}
        for name, reference in references.items():
            ids = reference.encode(text)
            # FNV-1a over the ids as little-endian 32-bit words: the lists themselves would be megabytes.
            h = 0xCBF29CE484222325
            for b in b"".join(i.to_bytes(4, "little") for i in ids):
                h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
            case["ids"][name] = {"count": len(ids), "fnv1a": str(h)}
        long_cases.append(case)
    id_cases = []
    for name, reference in references.items():
        size = reference.size()
        for _ in range(60):
            top = rng.choice([256, size, size + 40])
            ids = [rng.randrange(top) for _ in range(rng.randint(1, 25))]
            id_cases.append({"tokenizer": name, "ids": ids, "keep": reference.decode(ids, False),
                             "skip": reference.decode(ids, True)})
    versions = {"tiktoken": tiktoken.__version__, "tokenizers": __import__("tokenizers").__version__,
                "unicodedata": unicodedata.unidata_version, "python": sys.version.split()[0]}
    out = {"made_by": "tools/golden/make_tokenizer.py", "seed": SEED, "versions": versions, "cases": cases,
           "long_cases": long_cases, "id_cases": id_cases}
    text = json.dumps(out, ensure_ascii=True, separators=(",", ":")).replace('{"text"', '\n{"text"')
    (root / "cases.json").write_text(text + "\n", encoding="ascii")
    print(f"{len(cases)} texts, {len(long_cases)} long texts, {len(id_cases)} id lists")


if __name__ == "__main__":
    main()
