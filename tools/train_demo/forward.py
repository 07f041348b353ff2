# SPDX-License-Identifier: Apache-2.0
"""Forward pass of the two demo models for training and evaluation: regions of constant shape, compiled one by one.

Residual stream and delta rule in fp32, matrices and softmax attention in `Net.dtype` (bf16 on a GPU).
"""

import math

import torch
import torch.nn.functional as F

import delta
import model as m


def rms(x, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def lin(x, w, dtype):
    return F.linear(x.to(dtype), w.to(dtype))


def swiglu(h, gate, up, down, dtype):
    return lin(F.silu(lin(h, gate, dtype)) * lin(h, up, dtype), down, dtype)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


# --- regions of demo-gdn-vl ----------------------------------------------------------------------------------------------
def gdn_pre(x, pos, ln, qkv, z, b, a, conv, a_log, dt_bias, dtype):
    h = rms(x, 1e-6) * (1 + ln)
    mixed = delta.causal_conv(lin(h, qkv, dtype).float(), conv, pos)
    q, k, v = mixed.unflatten(-1, (3, m.GDN_HEADS, m.DELTA_DIM)).unbind(1)
    beta = torch.sigmoid(F.linear(h, b))
    g = -a_log.exp() * F.softplus(F.linear(h, a) + dt_bias)
    terms = delta.chunk_terms(delta.l2norm(q) * m.DELTA_DIM**-0.5, delta.l2norm(k), v, g.unsqueeze(-1), beta)
    return (*terms, lin(h, z, dtype))


def gdn_post(x, p, r, states, z, norm, out, ln, gate, up, down, dtype):
    o = rms(delta.outputs(p, r, states), 1e-6) * norm
    o = o * F.silu(z.float()).unflatten(-1, (m.GDN_HEADS, m.DELTA_DIM))
    x = x + lin(o.flatten(1), out, dtype)
    return x + swiglu(rms(x, 1e-6) * (1 + ln), gate, up, down, dtype)


def attention_pre(x, cos, sin, ln, wq, wk, wv, qn, kn, dtype):
    h = rms(x, 1e-6) * (1 + ln)
    q, gate = lin(h, wq, dtype).unflatten(-1, (m.HEADS, 2 * m.HEAD_DIM)).chunk(2, -1)
    k, v = lin(h, wk, dtype).unflatten(-1, (m.KV_HEADS, m.HEAD_DIM)), lin(h, wv, dtype).unflatten(-1, (m.KV_HEADS, m.HEAD_DIM))
    q, k = rms(q.float(), 1e-6) * (1 + qn), rms(k.float(), 1e-6) * (1 + kn)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    q = torch.cat((rotate(q[..., :m.ROTARY], cos, sin), q[..., m.ROTARY:]), -1)
    k = torch.cat((rotate(k[..., :m.ROTARY], cos, sin), k[..., m.ROTARY:]), -1)
    rep = m.HEADS // m.KV_HEADS
    return q.to(dtype), k.to(dtype).repeat_interleave(rep, 1), v.repeat_interleave(rep, 1), gate.flatten(1)


def attention_post(x, o, gate, out, ln, wg, up, down, dtype):
    x = x + lin(o * torch.sigmoid(gate), out, dtype)
    return x + swiglu(rms(x, 1e-6) * (1 + ln), wg, up, down, dtype)


# --- regions of demo-kda -------------------------------------------------------------------------------------------------
def kda_pre(x, pos, ln, wq, wk, wv, cq, ck, cv, fa, fb, b, ga, gb, a_log, dt_bias, dtype):
    h = rms(x, 1e-5) * ln
    mixed = delta.causal_conv(lin(h, torch.cat((wq, wk, wv)), dtype).float(), torch.cat((cq, ck, cv)), pos)
    q, k, v = mixed.unflatten(-1, (3, m.KDA_HEADS, m.DELTA_DIM)).unbind(1)
    beta = torch.sigmoid(F.linear(h, b))
    f = (lin(lin(h, fa, dtype), fb, dtype).float() + dt_bias).unflatten(-1, (m.KDA_HEADS, m.DELTA_DIM))
    g = -a_log.exp().view(1, m.KDA_HEADS, 1) * F.softplus(f)
    terms = delta.chunk_terms(delta.l2norm(q) * m.DELTA_DIM**-0.5, delta.l2norm(k), v, g, beta)
    return (*terms, lin(lin(h, ga, dtype), gb, dtype), g.detach().amin())


def kda_mix(x, p, r, states, gate, norm, out, dtype):
    o = rms(delta.outputs(p, r, states), 1e-5) * norm * torch.sigmoid(gate.float()).unflatten(-1, (m.KDA_HEADS, m.DELTA_DIM))
    return x + lin(o.flatten(1), out, dtype)


def moe(x, ln, router, bias, gate_up, down, sg, su, sd, dtype):
    """All experts at once (8 of width 64 cost as much as a dense layer of 512); the weights of those not chosen are zero."""
    h = rms(x, 1e-5) * ln
    scores = torch.sigmoid(F.linear(h, router))
    chosen = torch.topk(scores + bias, m.TOP_K, -1)[1]
    mask = torch.zeros_like(scores).scatter(1, chosen, 1.0)
    weights = scores * mask
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * m.ROUTED_SCALE
    gate, up = lin(h, gate_up.flatten(0, 1), dtype).unflatten(-1, (m.EXPERTS, 2, m.EXPERT_INNER)).unbind(2)
    inner = F.silu(gate) * up * weights.to(dtype).unsqueeze(-1)
    y = lin(inner.flatten(1), down.transpose(0, 1).flatten(1), dtype)
    # balance loss: share of the tokens of each expert times its mean score (Switch Transformers, arXiv 2101.03961, eq. 4)
    share = (scores / scores.sum(-1, keepdim=True)).mean(0)
    load = mask.mean(0)
    return x + y + swiglu(h, sg, su, sd, dtype), load, (load * share).sum() * (m.EXPERTS / m.TOP_K)


def kda_post_moe(x, p, r, states, gate, norm, out, *rest):
    return moe(kda_mix(x, p, r, states, gate, norm, out, rest[-1]), *rest)


def kda_post_dense(x, p, r, states, gate, norm, out, ln, wg, up, down, dtype):
    x = kda_mix(x, p, r, states, gate, norm, out, dtype)
    return x + swiglu(rms(x, 1e-5) * ln, wg, up, down, dtype)


def mla_pre(x, ln, wq, kv_a, kv_norm, kv_b, dtype):
    h = rms(x, 1e-5) * ln
    q = lin(h, wq, dtype).unflatten(-1, (m.MLA_HEADS, m.NOPE + m.ROPE))
    c, rope = lin(h, kv_a, dtype).split([m.RANK, m.ROPE], -1)
    kv = lin(rms(c.float(), 1e-6) * kv_norm, kv_b, dtype).unflatten(-1, (m.MLA_HEADS, m.NOPE + m.V_DIM))
    nope, v = kv.split([m.NOPE, m.V_DIM], -1)
    k = torch.cat((nope, rope.unsqueeze(1).expand(-1, m.MLA_HEADS, -1)), -1)
    return q, k, F.pad(v, (0, m.NOPE + m.ROPE - m.V_DIM))


def mla_post(x, o, out, *rest):
    return moe(x + lin(o.unflatten(-1, (m.MLA_HEADS, m.NOPE + m.ROPE))[..., :m.V_DIM].flatten(1), out, rest[-1]), *rest)


# --- the tower and the head ----------------------------------------------------------------------------------------------
def tower(patches, taps, weights, cos, sin, mask, we, be, table, blocks, mn, mb, w1, b1, w2, b2, dtype):
    """patches uint8 [M, P, 768] in merge-block order, padded; taps/weights [M, P, 4]; mask [M, P] bool. Returns [M, P/4, 256]."""
    x = patches.float() * (2 / 255) - 1
    x = lin(x, we.sum(2).flatten(1), dtype).float() + be
    x = x + (table[taps] * weights.unsqueeze(-1)).sum(2)
    key_mask = mask[:, None, None, :]
    for n1w, n1b, qkvw, qkvb, pw, pb, n2w, n2b, f1w, f1b, f2w, f2b in blocks:
        h = F.layer_norm(x, (m.V_HIDDEN,), n1w, n1b, 1e-6)
        q, k, v = (lin(h, qkvw, dtype) + qkvb.to(dtype)).unflatten(-1, (3, m.V_HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotate(q.float(), cos.unsqueeze(1), sin.unsqueeze(1)).to(dtype), rotate(k.float(), cos.unsqueeze(1), sin.unsqueeze(1)).to(dtype)
        s = (q @ k.transpose(-1, -2)).float() * (m.V_HIDDEN // m.V_HEADS)**-0.5
        o = torch.softmax(torch.where(key_mask, s, -1e9), -1).to(dtype) @ v
        x = x + lin(o.transpose(1, 2).flatten(2), pw, dtype) + pb
        h = F.layer_norm(x, (m.V_HIDDEN,), n2w, n2b, 1e-6)
        x = x + lin(F.gelu(lin(h, f1w, dtype) + f1b.to(dtype), approximate="tanh"), f2w, dtype) + f2b
    h = F.layer_norm(x, (m.V_HIDDEN,), mn, mb, 1e-6).unflatten(1, (-1, 4)).flatten(2)
    return lin(F.gelu(lin(h, w1, dtype) + b1.to(dtype)), w2, dtype).float() + b2


def head_loss(x, norm, zero_centred, table, labels, eps, dtype):
    """Loss per token (0 where the label is -100) and whether the best token is the label."""
    h = rms(x, eps) * (norm + zero_centred)
    logits = lin(h, table, dtype).float()
    loss = F.cross_entropy(logits, labels, ignore_index=-100, reduction="none")
    return loss, logits.detach().argmax(-1) == labels


def interpolation(h, w, side=m.V_GRID):
    """Taps and weights of the learned position table for a grid h x w, in merge-block order: [h*w, 4] each; and (row, column)."""
    def axis(n):
        src = torch.arange(n) * (side - 1) / max(n - 1, 1)
        low = src.floor()
        return low.long(), torch.clamp(low.long() + 1, max=side - 1), src - low
    order = torch.arange(h * w).view(h // 2, 2, w // 2, 2).transpose(1, 2).flatten()
    rows, cols = order // w, order % w
    y0, y1, fy = (t[rows] for t in axis(h))
    x0, x1, fx = (t[cols] for t in axis(w))
    taps = torch.stack([y0 * side + x0, y0 * side + x1, y1 * side + x0, y1 * side + x1], -1)
    return taps, torch.stack([(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx], -1), rows, cols


class Net:
    """Runs the regions over a dictionary of parameters."""

    def __init__(self, family, params, device, dtype, compiled=False):
        self.family, self.p, self.device, self.dtype = family, params, device, dtype
        self.root = "model.language_model." if family == "gdn" else "model."
        self.load, self.lowest_gate, self.uneven = [], None, 0.0
        self.grids = {}
        self.compiled = compiled
        self._regions = {}

    def region(self, f):
        if not (self.compiled and torch.is_grad_enabled()):
            return f
        if f not in self._regions:
            self._regions[f] = torch.compile(f, dynamic=False)
        return self._regions[f]

    def get(self, prefix, names):
        return [self.p[prefix + n] for n in names.split()]

    def rope(self, pos3):
        """cos, sin [N, 16] of interleaved three-row positions pos3 [3, N]."""
        half = m.ROTARY // 2
        inv = m.THETA**(-torch.arange(half, device=self.device, dtype=torch.float32) / half)
        row = torch.zeros(half, dtype=torch.long, device=self.device)
        row[1:3 * m.MROPE_SECTION[1]:3] = 1
        row[2:3 * m.MROPE_SECTION[2]:3] = 2
        angles = pos3.float()[row].t() * inv
        angles = torch.cat((angles, angles), -1)
        return angles.cos(), angles.sin()

    def grid_tables(self, shapes, room):
        """Stacked tables of the tower for a list of grids (h, w), padded to `room` patches."""
        key = (tuple(shapes), room)
        if key not in self.grids:
            quarter = m.V_HIDDEN // m.V_HEADS // 4
            inv = 10000.0**(-torch.arange(quarter) / quarter)
            tables = []
            for h, w in shapes:
                taps, weights, rows, cols = interpolation(h, w)
                angles = torch.cat((rows[:, None] * inv, cols[:, None] * inv), -1)
                angles = torch.cat((angles, angles), -1)
                mask = torch.ones(h * w, dtype=torch.bool)
                tables.append([F.pad(t, (0, 0) * (t.dim() - 1) + (0, room - h * w)) for t in (taps, weights, angles.cos(), angles.sin(), mask)])
            self.grids[key] = [torch.stack(t).to(self.device) for t in zip(*tables)]
        return self.grids[key]

    def see(self, patches, grid_ids, shapes):
        """patches [M, P, 768] uint8, grid_ids [M] into shapes. Returns merged features [M * P/4, 256]."""
        tables = [t[grid_ids] for t in self.grid_tables(shapes, patches.shape[1])]
        v = "model.visual."
        blocks = [self.get(f"{v}blocks.{i}.", "norm1.weight norm1.bias attn.qkv.weight attn.qkv.bias attn.proj.weight attn.proj.bias norm2.weight norm2.bias "
                           "mlp.linear_fc1.weight mlp.linear_fc1.bias mlp.linear_fc2.weight mlp.linear_fc2.bias") for i in range(m.V_DEPTH)]
        merged = self.region(tower)(
            patches, *tables, *self.get(v, "patch_embed.proj.weight patch_embed.proj.bias pos_embed.weight"), blocks,
            *self.get(v, "merger.norm.weight merger.norm.bias merger.linear_fc1.weight merger.linear_fc1.bias merger.linear_fc2.weight merger.linear_fc2.bias"), self.dtype)
        return merged.flatten(0, 1)

    def attend(self, q, k, v, segments):
        sizes = [r * t for r, t in segments]
        out = []
        for (rows, tokens), *qkv in zip(segments, q.split(sizes), k.split(sizes), v.split(sizes)):
            qkv = [x.unflatten(0, (rows, tokens)).transpose(1, 2) for x in qkv]
            out.append(F.scaled_dot_product_attention(*qkv, is_causal=True).transpose(1, 2).flatten(0, 1))
        return torch.cat(out).flatten(1)

    def hidden(self, ids, pos, segments, pos3=None, vision=None, vision_source=None):
        """Residual stream [N, 256] before the final norm. ids, pos [N]; vision: features [F, 256], vision_source [N]: their row or -1."""
        p, d = self.p, self.dtype
        x = F.embedding(ids, p[self.root + "embed_tokens.weight"])
        if vision is not None:
            x = torch.where((vision_source >= 0)[:, None], vision[vision_source.clamp(min=0)], x)
        self.load, lowest, self.uneven = [], [], 0.0
        if self.family == "gdn":
            cos, sin = self.rope(pos3)
        for i, kind in enumerate(m.LAYERS):
            layer = f"{self.root}layers.{i}."
            ln, ln2 = p[layer + "input_layernorm.weight"], p[layer + "post_attention_layernorm.weight"]
            dense = self.family == "gdn" or i == 0
            if dense:
                rest = [ln2, *self.get(layer + "mlp.", "gate_proj.weight up_proj.weight down_proj.weight"), d]
            else:
                rest = [ln2, *self.get(layer + "block_sparse_moe.", "gate.weight gate.e_score_correction_bias experts.gate_up experts.down "
                                       "shared_experts.gate_proj.weight shared_experts.up_proj.weight shared_experts.down_proj.weight"), d]
            if self.family == "gdn" and kind == "linear":
                a = layer + "linear_attn."
                ta, tb, tp, tr, z = self.region(gdn_pre)(x, pos, ln, *self.get(a, "in_proj_qkv.weight in_proj_z.weight in_proj_b.weight in_proj_a.weight conv1d.weight A_log dt_bias"), d)
                x = self.region(gdn_post)(x, tp, tr, delta.scan(ta, tb, segments), z, *self.get(a, "norm.weight out_proj.weight"), *rest)
            elif self.family == "gdn":
                a = layer + "self_attn."
                q, k, v, gate = self.region(attention_pre)(x, cos, sin, ln, *self.get(a, "q_proj.weight k_proj.weight v_proj.weight q_norm.weight k_norm.weight"), d)
                x = self.region(attention_post)(x, self.attend(q, k, v, segments), gate, p[a + "o_proj.weight"], *rest)
            elif kind == "linear":
                a = layer + "self_attn."
                ta, tb, tp, tr, gate, low = self.region(kda_pre)(
                    x, pos, ln, *self.get(a, "q_proj.weight k_proj.weight v_proj.weight q_conv1d.weight k_conv1d.weight v_conv1d.weight f_a_proj.weight f_b_proj.weight "
                                          "b_proj.weight g_a_proj.weight g_b_proj.weight A_log dt_bias"), d)
                lowest.append(low)
                x = self.region(kda_post_dense if dense else kda_post_moe)(x, tp, tr, delta.scan(ta, tb, segments), gate, *self.get(a, "o_norm.weight o_proj.weight"), *rest)
            else:
                a = layer + "self_attn."
                q, k, v = self.region(mla_pre)(x, ln, *self.get(a, "q_proj.weight kv_a_proj_with_mqa.weight kv_a_layernorm.weight kv_b_proj.weight"), d)
                x = self.region(mla_post)(x, self.attend(q, k, v, segments), p[a + "o_proj.weight"], *rest)
            if not dense:
                x, load, uneven = x
                self.load.append((layer + "block_sparse_moe.gate.e_score_correction_bias", load.detach()))
                self.uneven = self.uneven + uneven
        if lowest:
            self.lowest_gate = torch.stack(lowest).min()
        return x

    def head(self):
        table = self.p["lm_head.weight"] if self.family == "kda" else self.p[self.root + "embed_tokens.weight"]
        return self.p[self.root + "norm.weight"], 1.0 if self.family == "gdn" else 0.0, table

    def loss(self, x, labels):
        norm, one, table = self.head()
        return self.region(head_loss)(x, norm, one, table, labels, m.EPS[self.family], self.dtype)

    def logits(self, x):
        norm, one, table = self.head()
        return lin(rms(x, m.EPS[self.family]) * (norm + one), table, self.dtype).float()


def parameter_count(params):
    return sum(math.prod(t.shape) for t in params.values())
