# SPDX-License-Identifier: Apache-2.0
"""Muon (orthogonalised momentum; K. Jordan et al., 2024) for the inner matrices, AdamW for everything else."""

import torch

import model as m

# Coefficients of the quintic Newton-Schulz iteration of the Muon write-up.
NS = (3.4445, -4.7750, 2.0315)


def orthogonalised(g, dtype):
    """About U V^T of the singular value decomposition of every matrix [n, r, c]."""
    x = g.to(dtype)
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = NS
    for _ in range(5):
        s = x @ x.mT
        x = a * x + (b * s + c * (s @ s)) @ x
    return (x.mT if flip else x).float()


def pieces(name, t):
    """The matrices that a tensor holds, as a view [n, r, c]; None: not for Muon."""
    if name.endswith(("embed_tokens.weight", "lm_head.weight", "conv1d.weight", "gate.weight", "pos_embed.weight", "patch_embed.proj.weight", "b_proj.weight",
                      "in_proj_a.weight", "in_proj_b.weight")) or t.dim() < 2 or name.endswith("A_log"):
        if not name.endswith(("f_b_proj.weight", "g_b_proj.weight", "kv_b_proj.weight")):
            return None
    if name.endswith(("in_proj_qkv.weight", "attn.qkv.weight")):
        return t.reshape(3, t.shape[0] // 3, t.shape[1])
    if name.endswith("experts.gate_up"):
        return t.reshape(2 * m.EXPERTS, m.EXPERT_INNER, t.shape[-1])
    return t.reshape(-1, t.shape[-2], t.shape[-1])


class Optimiser:

    def __init__(self, params, muon_lr, adam_lr, fused, dtype):
        self.muon_lr, self.adam_lr, self.dtype = muon_lr, adam_lr, dtype
        groups, rest = {}, []
        for name, t in params.items():
            if not t.requires_grad:
                continue
            v = pieces(name, t.data)
            if v is None:
                rest.append(t)
            else:
                groups.setdefault(tuple(v.shape[1:]), []).append((name, t))
        self.groups = []
        for shape, members in groups.items():
            count = sum(pieces(n, t.data).shape[0] for n, t in members)
            self.groups.append((members, torch.zeros(count, *shape, device=members[0][1].device), max(1, shape[0] / shape[1])**0.5))
        self.rest = rest
        self.adam = torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=fused)

    @torch.no_grad()
    def step(self, scale, momentum):
        for members, buffer, gain in self.groups:
            g = torch.cat([pieces(n, t.grad) for n, t in members])
            buffer.lerp_(g, 1 - momentum)
            u = orthogonalised(g.lerp(buffer, momentum), self.dtype) * (-self.muon_lr * scale * gain)
            at = 0
            for n, t in members:
                view = pieces(n, t.data)
                view.mul_(1 - 0.01 * self.muon_lr * scale).add_(u[at:at + view.shape[0]])
                at += view.shape[0]
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * scale
        self.adam.step()
        for members, _, _ in self.groups:
            for _, t in members:
                t.grad = None
        self.adam.zero_grad(set_to_none=True)
