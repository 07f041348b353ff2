# SPDX-License-Identifier: Apache-2.0
"""What a decoder model computes, as the parity tests of src/models want it: one golden.safetensors per checkpoint.

  p<n>.ids [n]; p<n>.positions [k]; p<n>.logits [k, V]; p<n>.greedy [64]; p<n>.margin [64] (top-1 minus top-2 logit)
  p<n>.conv.<layer> [C, 3]; p<n>.recurrent.<layer> [Hv, V, K]    states after the prompt, of linear-attention layers
  p65.hidden.<i> [65, H]        i = 0: embeddings, i = l: output of layer l-1, before the final norm
  p<n>.argmax [n], p<n>.argmax_exact [n]   with `exact` only: of every position, in the checkpoint's type and with the
                                same weights in fp32
"""

import os

import torch

from common import GREEDY_TOKENS, linear_states, positions_kept, prompt, store


def logits_and_cache(model, ids, **kwargs):
    out = model(input_ids=torch.tensor([ids]), use_cache=True, logits_to_keep=0, **kwargs)
    return out.logits[0].float(), out.past_key_values


def greedy(model, ids):
    logits, cache = logits_and_cache(model, ids)
    tokens, margins = [], []
    last = logits[-1]
    while True:
        top = torch.topk(last, 2)
        tokens.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        if len(tokens) == GREEDY_TOKENS:
            return tokens, margins
        out = model(input_ids=torch.tensor([[tokens[-1]]]), past_key_values=cache, use_cache=True)
        last, cache = out.logits[0, -1].float(), out.past_key_values


@torch.no_grad()
def run(model, directory, seed, lengths, vocab, linear_layers, states=linear_states, exact=None, more=None):
    """Ids are drawn from 0..vocab-1. `exact`: the same weights in fp32. `more`: a function model -> further tensors."""
    tensors, notes = {}, {"seed": seed}
    hidden = []
    text = model.model.language_model if hasattr(model.model, "language_model") else model.model
    hooks = [text.layers[0].register_forward_pre_hook(lambda m, a, k=None: hidden.append(a[0][0].float().clone()))]
    hooks += [l.register_forward_hook(
        lambda m, a, o: hidden.append((o[0] if isinstance(o, tuple) else o)[0].float().clone())) for l in text.layers]
    for n in lengths:
        ids = prompt(n, vocab, seed)
        hidden.clear()
        logits, cache = logits_and_cache(model, ids)
        if n == 65:
            for i, h in enumerate(hidden):
                tensors[f"p{n}.hidden.{i}"] = h
        keep = positions_kept(n)
        tensors[f"p{n}.ids"] = torch.tensor(ids, dtype=torch.int32)
        tensors[f"p{n}.positions"] = torch.tensor(keep, dtype=torch.int32)
        tensors[f"p{n}.logits"] = logits[keep].clone()
        for layer in linear_layers:
            tensors[f"p{n}.conv.{layer}"], tensors[f"p{n}.recurrent.{layer}"] = states(cache, layer)
        if exact is not None:
            tensors[f"p{n}.argmax"] = logits.argmax(-1).int()
            tensors[f"p{n}.argmax_exact"] = logits_and_cache(exact, ids)[0].argmax(-1).int()
            same = (tensors[f"p{n}.argmax"] == tensors[f"p{n}.argmax_exact"]).float().mean()
            notes[f"p{n} argmax"] = {"as fp32": round(float(same), 4),
                                     "distinct": len(set(tensors[f"p{n}.argmax"].tolist()))}
        tokens, margins = greedy(model, ids)
        tensors[f"p{n}.greedy"] = torch.tensor(tokens, dtype=torch.int32)
        tensors[f"p{n}.margin"] = torch.tensor(margins)
        notes[f"p{n}"] = {"smallest margin": round(min(margins), 5), "distinct": len(set(tokens))}
    for h in hooks:
        h.remove()
    if more is not None:
        tensors |= more(model)
    store(os.path.join(directory, "golden.safetensors"), tensors, notes)
