# SPDX-License-Identifier: Apache-2.0
"""Tokenizers (byte-level BPE trained on the generated text), chat templates, and the small files beside the weights."""

import json
import os
import random

import arithmetic
import chat
import pictures
import recall

# The pre-tokenizer of Qwen3.5; every digit is a token of its own.
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BASE_TOKENS = 1200
VOCAB = 1280  # rows of the embedding; those behind the last token are never used

SPECIAL = {
    "gdn": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"],
    "kda": ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "[UNK]", "[PAD]"],
}
PLAIN = {"gdn": ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"], "kda": []}

TEMPLATES = {
    "gdn": """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content or [] %}
            {%- if part.type == 'image' or part.type == 'image_url' or 'image' in part or 'image_url' in part %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif part.type == 'text' or 'text' in part %}
                {{- part.text }}
            {%- else %}
                {{- raise_exception('this model reads text and images only') }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "kda": """{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_user|>user<|im_middle|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_assistant|>assistant<|im_middle|>' }}
    {%- else %}
        {{- '<|im_system|>' + message.role + '<|im_middle|>' }}
    {%- endif %}
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
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_assistant|>assistant<|im_middle|>' }}
{%- endif %}
""",
}
IMAGE_MARK = "<|vision_start|><|image_pad|><|vision_end|>"


def turn(family, question):
    """The text of one user message and the opening of the answer, exactly as the chat template writes them."""
    if family == "gdn":
        return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return f"<|im_user|>user<|im_middle|>{question}<|im_end|><|im_assistant|>assistant<|im_middle|>"


def answer_end(family):
    """What follows an answer: (learnt by the model, only between turns)."""
    return ("<|im_end|>", "\n") if family == "gdn" else ("<|im_end|>", "")


def corpus(family, count=60000, seed=7):
    """Generated text that the vocabulary is trained on. Words in capitals stay out: they are spelt letter by letter."""
    rng = random.Random(seed)
    for i in range(count):
        kind = i % 10
        if kind < 6:
            question, answer, _ = arithmetic.make(rng)
            yield question + "\n" + answer
        elif kind < 8:
            text, asks = recall.make(rng, 6, 2, False)
            yield text + asks[0][0]
        elif kind < 9:
            yield "\n".join(chat.make(rng, family))
        else:
            first, second = [sorted((rng.randrange(9), rng.choice(list(pictures.COLOURS)), rng.choice(pictures.SHAPES)) for _ in range(3)) for _ in range(2)]
            pair = pictures.ask_shapes(rng, first) if rng.random() < 0.8 else pictures.ask_two(rng, first, second)
            yield "\n".join(pair)
            yield pictures.ask_word(rng, "", "red")[0]


def write_tokenizer(family, directory):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(family), trainers.BpeTrainer(
        vocab_size=BASE_TOKENS, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    for content in SPECIAL[family]:
        t.add_special_tokens([AddedToken(content, special=True, normalized=False)])
    for content in PLAIN[family]:
        t.add_tokens([AddedToken(content, special=False, normalized=False)])
    os.makedirs(directory, exist_ok=True)
    t.save(os.path.join(directory, "tokenizer.json"))
    if family == "gdn":
        named = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None, "unk_token": None}
    else:
        named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "[PAD]", "bos_token": "[BOS]", "unk_token": "[UNK]"}
    write_json(directory, "tokenizer_config.json", {**named, "clean_up_tokenization_spaces": False, "model_max_length": 8192, "add_prefix_space": False})
    with open(os.path.join(directory, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(TEMPLATES[family])
    ids = {name: t.token_to_id(name) for name in SPECIAL[family] + PLAIN[family]}
    end, last = (ids["<|im_end|>"], ids["<|endoftext|>"]) if family == "gdn" else (ids["<|im_end|>"], ids["[EOS]"])
    generation = {"do_sample": False, "pad_token_id": ids["<|endoftext|>" if family == "gdn" else "[PAD]"], "eos_token_id": [end, last]}
    generation["bos_token_id"] = last if family == "gdn" else ids["[BOS]"]
    write_json(directory, "generation_config.json", generation)
    if family == "gdn":
        image = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
        size = {"shortest_edge": pictures.MIN_PIXELS, "longest_edge": pictures.MAX_PIXELS}
        write_json(directory, "preprocessor_config.json", {"size": size, **image, "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast"})
        write_json(directory, "video_preprocessor_config.json", {"size": {"shortest_edge": 4096, "longest_edge": 4 * pictures.MAX_PIXELS}, **image, "processor_class": "Qwen3VLProcessor",
                                                                  "video_processor_type": "Qwen3VLVideoProcessor"})
    if t.get_vocab_size() > VOCAB:
        raise SystemExit(f"{t.get_vocab_size()} tokens do not fit {VOCAB} rows")
    return ids


def write_json(directory, name, value):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)
        f.write("\n")
