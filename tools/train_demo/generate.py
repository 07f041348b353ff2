# SPDX-License-Identifier: Apache-2.0
"""Greedy answers of a Net for many items at once, without caches: at these sizes a whole forward pass per token is quick."""

import os

import numpy as np
import torch
from PIL import Image

import answers
import batches
import pictures


def encoded(enc, item, folder):
    """(ids, grids, patches) of one eval item."""
    images = [pictures.patches(Image.open(os.path.join(folder, name)).convert("RGB")) for name in item.get("images", [])]
    grids = [g for _, g in images]
    return enc.prompt(item["question"], grids), grids, [p for p, _ in images]


@torch.no_grad()
def greedy(net, enc, prompts, limit, row_budget=131072):
    """Texts of the greedy continuations. prompts: [(ids, grids, patches)]."""
    texts = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i][0]))
    at = 0
    while at < len(order):
        group = [order[at]]
        length = 0
        for i in order[at:]:
            need = -(-(len(prompts[i][0]) + limit) // 64) * 64
            if i != order[at] and need * (len(group) + 1) > row_budget:
                break
            length = max(length, need)
            if i != order[at]:
                group.append(i)
        at += len(group)
        for i, text in zip(group, _group(net, enc, [prompts[i] for i in group], limit, length)):
            texts[i] = text
    return texts


def _group(net, enc, prompts, limit, length):
    rows, device = len(prompts), net.device
    ids = torch.zeros(rows, length, dtype=torch.long)
    pos3 = torch.zeros(3, rows, length, dtype=torch.long)
    source = torch.full((rows, length), -1)
    patches, grid_ids = [], []
    lengths = torch.tensor([len(p[0]) for p in prompts], device=device)
    for r, (row, grids, seen) in enumerate(prompts):
        n = len(row)
        ids[r, :n] = torch.tensor(row)
        if net.family == "gdn":
            p3 = torch.from_numpy(enc.positions(row, grids))
            pos3[:, r, :n] = p3
            pos3[:, r, n:] = p3.max() + 1 + torch.arange(length - n)
            cells, done = np.flatnonzero(np.asarray(row) == enc.pad_image), 0
            for g, p in zip(grids, seen):
                k = len(p) // 4
                source[r, torch.from_numpy(cells[done:done + k])] = len(patches) * (batches.PATCH_ROOM // 4) + torch.arange(k)
                padded = np.zeros((batches.PATCH_ROOM, 768), np.uint8)
                padded[:len(p)] = p
                patches.append(padded)
                grid_ids.append(batches.GRIDS.index(g))
                done += k
    ids, pos3, source = ids.to(device), pos3.flatten(1).to(device), source.flatten().to(device)
    vision = None
    if patches:
        vision = net.see(torch.from_numpy(np.stack(patches)).to(device), torch.tensor(grid_ids, device=device), batches.GRIDS)
    pos = torch.arange(length, device=device).repeat(rows)
    first = torch.arange(rows, device=device) * length
    done = torch.zeros(rows, dtype=torch.bool, device=device)
    for step in range(limit):
        x = net.hidden(ids.flatten(), pos, [(rows, length)], pos3, vision, source)
        best = net.logits(x[first + lengths + step - 1]).argmax(-1)
        ids[torch.arange(rows, device=device), lengths + step] = torch.where(done, enc.stop, best)
        done |= best == enc.stop
        if bool(done.all()):
            break
    out = ids.cpu().tolist()
    texts = []
    for r in range(rows):
        said = out[r][len(prompts[r][0]):len(prompts[r][0]) + limit]
        texts.append(enc.tokenizer.decode(said[:said.index(enc.stop)] if enc.stop in said else said))
    return texts


LIMITS = {"arithmetic": 64, "images": 112, "recall": 32}


def accuracy(net, enc, model, kind, count=None):
    """(share of right answers, [texts]) of one eval set."""
    items = answers.read_items(answers.eval_files(model)[kind])
    if count:
        items = items[::max(1, len(items) // count)][:count]
    said = greedy(net, enc, [encoded(enc, item, model) for item in items], LIMITS[kind])
    return sum(answers.right(t, i["answer"]) for t, i in zip(said, items)) / len(items), said
