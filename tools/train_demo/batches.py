# SPDX-License-Identifier: Apache-2.0
"""Training batches: flat rows of N tokens in segments, made by worker processes."""

import os
import random

import numpy as np

import arithmetic
import chat
import pictures
import recall
import vocabulary
from split import is_test

GRIDS = [(6, 6), (6, 8), (8, 6), (8, 8), (6, 10), (8, 10), (10, 8)]
PATCH_ROOM = 80
# Whether a recall answer names the key first. In small trials demo-kda learned to bind keys and codes only so.
RECALL_WORKING = {"gdn": False, "kda": True}


class Encoder:
    """Tokenizer of one family and the turns of conversations."""

    def __init__(self, family, directory):
        from tokenizers import Tokenizer
        self.family = family
        self.tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
        self.pad_image = self.tokenizer.token_to_id("<|image_pad|>") if family == "gdn" else None
        self.end, self.between = (self.ids(t) for t in vocabulary.answer_end(family))
        self.stop = self.end[0]

    def ids(self, text):
        return self.tokenizer.encode(text).ids if text else []

    def prompt(self, question, grids=()):
        """Ids of one user message (pictures first) up to where the answer begins."""
        ids = self.ids(vocabulary.turn(self.family, vocabulary.IMAGE_MARK * len(grids) + question))
        if not grids:
            return ids
        out, left = [], list(grids)
        for t in ids:
            if t == self.pad_image:
                h, w = left.pop(0)
                out += [t] * (h * w // 4)
            else:
                out.append(t)
        return out

    def turn(self, question, answer, grids=()):
        """(ids, labels): labels -100 on the prompt; the answer's end mark is learnt, what stands between turns is not."""
        prompt, said = self.prompt(question, grids), self.ids(answer) + self.end
        return prompt + said + self.between, [-100] * len(prompt) + said + [-100] * len(self.between)

    def positions(self, ids, grids):
        """Three rows of positions [3, len(ids)] (models with pictures)."""
        n = len(ids)
        if not grids:
            return np.tile(np.arange(n), (3, 1))
        out, i, cur, left = np.zeros((3, n), np.int64), 0, 0, list(grids)
        while i < n:
            if ids[i] == self.pad_image:
                h, w = left.pop(0)
                cells = np.arange(h * w // 4)
                out[:, i:i + len(cells)] = np.stack([np.full(len(cells), cur), cur + cells // (w // 2), cur + cells % (w // 2)])
                i, cur = i + len(cells), cur + max(h, w) // 2
            else:
                out[:, i] = cur
                i, cur = i + 1, cur + 1
        return out


def text_turn(rng, enc, chat_share=0.06):
    """A turn of arithmetic, now and then of chat."""
    if rng.random() < chat_share:
        return enc.turn(*chat.make(rng, enc.family))
    while True:
        question, answer, chain = arithmetic.make(rng)
        if not is_test(chain):
            return enc.turn(question, answer)


def text_row(rng, enc, length):
    ids, labels = text_turn(rng, enc)
    for _ in range(8):
        more = text_turn(rng, enc)
        if len(ids) + len(more[0]) > length:
            break
        ids, labels = ids + more[0], labels + more[1]
    return ids[:length], labels[:length]


def recall_row(rng, enc, length):
    working = RECALL_WORKING[enc.family]
    each = 40 if working else 30
    questions = {128: 2, 256: 4, 512: 6, 1024: 8}.get(length, 16)
    entries = max(2, int((length - 20 - questions * each) / 12.6))
    if rng.random() < 0.2:
        entries = rng.randint(2, entries)
    easy = working and rng.random() < 0.25
    while True:
        text, asks = recall.make(rng, entries, questions, False, working, easy)
        ids, labels = [], []
        for i, (question, answer, _) in enumerate(asks):
            more = enc.turn((text if i == 0 else "") + question, answer)
            if i and len(ids) + len(more[0]) > length:
                break
            ids, labels = ids + more[0], labels + more[1]
        if len(ids) <= length:
            return ids, labels
        entries = max(2, int(entries * 0.9))


def picture_row(rng, enc, length, words=False):
    """(ids, labels, grids, patches): one or two pictures and as many questions as fit; words: one word to read."""
    while True:
        if words:
            image, word, colour = pictures.word_scene(rng, False)
            images, asks = [image], [pictures.ask_word(rng, word, colour)]
        else:
            images, asks = pictures.make(rng, False, 4)
        seen = [pictures.patches(i) for i in images]
        grids = [g for _, g in seen]
        ids, labels = enc.turn(*asks[0], grids)
        if len(ids) <= length:
            break
    for ask in asks[1:]:
        more = enc.turn(*ask)
        if len(ids) + len(more[0]) > length:
            break
        ids, labels = ids + more[0], labels + more[1]
    return ids, labels, grids, [p for p, _ in seen]


def plan(family, tokens, rng, progress, stage=1):
    """Segments [(kind, rows, row length)] of one step; `tokens` a multiple of 4096. Long recall comes after the first part of training.
    Stage 2 of demo-gdn-vl continues a model that can all but read words well."""
    unit = tokens // 16

    def rows(kind, units, length):
        length = min(length, units * unit)
        while units * unit % length:  # small steps hold no long rows
            length //= 2
        return kind, units * unit // length, length

    if family == "gdn":
        length = rng.choices([256, 1024, 4096], [0.75, 0.25, 0.0] if progress < 0.15 and stage == 1 else [0.35, 0.4, 0.25])[0]
        if stage == 2:
            return [rows("words", 7, 64), rows("pictures", 3, 128), rows("text", 2, 128), rows("text", 1, 256), rows("recall", 3, length)]
        return [rows("pictures", 6, 128), rows("text", 5, 128), rows("text", 2, 256), rows("recall", 3, length)]
    if progress < 0.3:
        return [rows("text", 5, 128), rows("text", 1, 256), rows("recall", 6, 128), rows("recall", 4, 256)]
    length = rng.choices([512, 1024, 4096], [0.3, 0.4, 0.3])[0]
    return [rows("text", 5, 128), rows("text", 1, 256), rows("recall", 2, 128), rows("recall", 4, 256), rows("recall", 4, length)]


def build(family, enc, tokens, rng, progress, stage=1):
    """One step's arrays."""
    segments = plan(family, tokens, rng, progress, stage)
    ids = np.zeros(tokens, np.int32)
    labels = np.full(tokens, -100, np.int32)
    pos = np.zeros(tokens, np.int32)
    out = {"ids": ids, "labels": labels, "pos": pos}
    if family == "gdn":
        room = sum({"words": r, "pictures": r * 4 // 3}.get(k, 0) for k, r, _ in segments)
        out.update(pos3=np.zeros((3, tokens), np.int32), source=np.full(tokens, -1, np.int32), patches=np.zeros((room, PATCH_ROOM, 768), np.uint8), grids=np.zeros(room, np.int32))
    at, images = 0, 0
    for kind, rows, length in segments:
        for _ in range(rows):
            if kind in ("pictures", "words"):
                row, lab, grids, patches = picture_row(rng, enc, length, kind == "words")
                if images + len(grids) > room:
                    row, lab, grids, patches = *text_row(rng, enc, length), [], []
            else:
                row, lab = (text_row if kind == "text" else recall_row)(rng, enc, length)
                grids, patches = [], []
            n = len(row)
            ids[at:at + n] = row
            # the token at t predicts the token at t + 1
            labels[at:at + n - 1] = lab[1:]
            pos[at:at + length] = np.arange(length)
            if family == "gdn":
                p3 = out["pos3"]
                p3[:, at:at + n] = enc.positions(row, grids)
                p3[:, at + n:at + length] = p3[:, at + n - 1:at + n] + 1
                if grids:
                    cells = np.flatnonzero(np.asarray(row) == enc.pad_image)
                    done = 0
                    for g, p in zip(grids, patches):
                        k = len(p) // 4
                        out["source"][at + cells[done:done + k]] = images * (PATCH_ROOM // 4) + np.arange(k)
                        out["patches"][images, :len(p)] = p
                        out["grids"][images] = GRIDS.index(g)
                        done, images = done + k, images + 1
            at += length
    assert at == tokens
    return [(r, t) for _, r, t in segments], [k for k, _, _ in segments], out
