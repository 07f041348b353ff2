# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule in chunks of 64 tokens, written for training: everything but one small loop is batched over chunks.

Per head, S <- diag(e^g) S, S <- S + beta k (v - S^T k)^T, o = S^T q. With G the running sum of g inside a chunk,
    M = strict_lower(diag(beta) (k_i . k_j e^(G_i - G_j))),   T = (I + M)^-1,   U = T diag(beta) V,   W = T diag(beta) (K e^G)
the state moves by  S' = A S + B,  A = diag(e^(G_last)) - (K e^(G_last - G))^T W,  B = (K e^(G_last - G))^T U,
and the outputs are  O = P S + R,  P = Q e^G - Y W,  R = Y U,  Y = lower(q_i . k_j e^(G_i - G_j)).
Formulas: Yang et al., arXiv 2412.06464 (one gate per head), and the Kimi Linear report, arXiv 2510.26692 (one per channel).
"""

import torch
import torch.nn.functional as F

CHUNK = 64
SUB = 16


def small_product(a, b):
    """Matrix product of small blocks in plain fp32 (never TF32): the inverse amplifies rounding."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


def unit_lower_inverse(m):
    """(I + m)^-1 of strictly lower triangular m [..., 64, 64]: powers inside blocks of 16, then two merges."""
    d = torch.stack([m[..., i:i + SUB, i:i + SUB] for i in range(0, CHUNK, SUB)], dim=-3)
    eye = torch.eye(SUB, device=m.device, dtype=m.dtype)
    x, power = eye - d, d
    for _ in range(3):
        power = small_product(power, power)
        x = small_product(x, eye + power)
    blocks, size = [x[..., i, :, :] for i in range(CHUNK // SUB)], SUB
    while len(blocks) > 1:
        merged = []
        for i in range(0, len(blocks), 2):
            a, b = blocks[i], blocks[i + 1]
            c = m[..., (i + 1) * size:(i + 2) * size, i * size:(i + 1) * size]
            merged.append(torch.cat([torch.cat([a, torch.zeros_like(a)], -1), torch.cat([-(b @ (c @ a)), b], -1)], -2))
        blocks, size = merged, 2 * size
    return blocks[0]


def decayed_products(q, k, g):
    """sum_c q_ic k_jc e^(G_ic - G_jc) and the same of k with k, [..., 64, 64]; only j <= i is meaningful. g: running sums."""
    if g.shape[-1] == 1:
        decay = torch.exp(torch.clamp(g - g.transpose(-1, -2), max=0.0))
        return (q @ k.transpose(-1, -2)) * decay, (k @ k.transpose(-1, -2)) * decay
    # Exponents are differences and never positive: rows and columns of one block of 16 pair by pair, and earlier columns through
    # the sum at the block's start. A factored form of the whole chunk would overflow or lose what strong gates forget.
    count = CHUNK // SUB
    qb, kb, gb = (x.unflatten(-2, (count, SUB)) for x in (q, k, g))
    pair = kb.unsqueeze(-3) * torch.exp(torch.clamp(gb.unsqueeze(-2) - gb.unsqueeze(-3), max=0.0))         # [..., 4, 16, 16, D]
    inside = [(x.unsqueeze(-2) * pair).sum(-1) for x in (qb, kb)]                                           # [..., 4, 16, 16]
    start = F.pad(gb[..., :-1, SUB - 1:, :], (0, 0, 0, 0, 1, 0))                                            # [..., 4, 1, D]
    left = torch.exp(torch.clamp(gb - start, max=0.0))
    right = (k.unsqueeze(-3) * torch.exp(torch.clamp(start - g.unsqueeze(-3), max=0.0))).transpose(-1, -2)  # [..., 4, D, 64]
    row = torch.arange(count, device=q.device)
    earlier = (row[None, :] < row[:, None])[:, None, :, None]
    same = (row[None, :] == row[:, None])[:, None, :, None]
    out = []
    for x, block in ((qb, inside[0]), (kb, inside[1])):
        far = ((x * left) @ right).unflatten(-1, (count, SUB))                                              # [..., 4, 16, 4, 16]
        whole = torch.where(same, block.unsqueeze(-2), torch.where(earlier, far, 0.0))
        out.append(whole.flatten(-2).flatten(-3, -2))
    return out


def chunk_terms(q, k, v, g, beta):
    """q, k [N, H, K] (normalised, q scaled), v [N, H, V], g [N, H, K or 1] log decay, beta [N, H]; N a multiple of 64.
    Returns A [N/64, H, K, K], B [N/64, H, K, V], P [N/64, H, 64, K], R [N/64, H, 64, V]; fp32."""
    q, k, v, g, beta = [x.float().unflatten(0, (-1, CHUNK)).transpose(1, 2) for x in (q, k, v, g, beta.unsqueeze(-1))]
    g = torch.cumsum(g, dim=-2)
    qk, kk = decayed_products(q.contiguous(), k.contiguous(), g)
    low = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    y = torch.where(low, qk, 0.0)
    t = unit_lower_inverse(torch.where(low.tril(-1), kk, 0.0) * beta)
    decay = torch.exp(g)
    u, w = t @ (v * beta), t @ (k * (beta * decay))
    last = g[..., -1:, :]
    kd = (k * torch.exp(last - g)).transpose(-1, -2)                                    # [.., K, 64]
    keep = torch.exp(last).transpose(-1, -2)                                            # [.., K or 1, 1]
    a = torch.eye(k.shape[-1], device=k.device, dtype=k.dtype) * keep - kd @ w
    return a, kd @ u, q * decay - y @ w, y @ u


def scan(a, b, segments):
    """States before every chunk [N/64, H, K, V]. segments: [(rows, tokens per row)], in the order of the flat tokens."""
    sizes = [rows * tokens // CHUNK for rows, tokens in segments]
    out = []
    for (rows, tokens), ap, bp in zip(segments, a.split(sizes), b.split(sizes)):
        ap = ap.unflatten(0, (rows, tokens // CHUNK)).unbind(1)
        bp = bp.unflatten(0, (rows, tokens // CHUNK)).unbind(1)
        state = torch.zeros_like(bp[0])
        states = [state]
        for c in range(len(ap) - 1):
            state = bp[c] if c == 0 else bp[c] + ap[c] @ state
            states.append(state)
        out.append(torch.stack(states, 1).flatten(0, 1))
    return torch.cat(out)


def outputs(p, r, states):
    """[N, H, V]"""
    return (p @ states + r).transpose(1, 2).flatten(0, 1)


def l2norm(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def causal_conv(x, weight, pos):
    """Depthwise causal convolution of width 4 and SiLU over flat rows [N, C]; pos [N] is the index inside its row."""
    y = x * weight[:, 0, 3]
    for j in range(1, 4):
        y = y + torch.where((pos >= j)[:, None], F.pad(x[:-j], (0, 0, j, 0)), 0.0) * weight[:, 0, 3 - j]
    return F.silu(y)
