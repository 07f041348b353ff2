# SPDX-License-Identifier: Apache-2.0
"""Forward and gradients of forward.py against transformers, fp32 on the CPU: python3 -m unittest discover -s tools/train_demo"""

import os
import tempfile
import unittest

import torch
from safetensors.torch import save_file

import forward
import model as m
import vocabulary


def reference(family, params, ids, directory, **inputs):
    """Loss and gradients of transformers' own model with the exported tensors (fp32)."""
    import transformers
    vocabulary.write_json(directory, "config.json", {**m.config(family, ids), "dtype": "float32"})
    tensors = {n: t.float() for n, t in m.exported(params).items()}
    save_file(tensors, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    cls = getattr(transformers, m.config(family, ids)["architectures"][0])
    model, info = cls.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


IDS = {"gdn": {n: 1200 + i for i, n in enumerate(vocabulary.SPECIAL["gdn"])}, "kda": {n: 1200 + i for i, n in enumerate(vocabulary.SPECIAL["kda"])}}


class ForwardTest(unittest.TestCase):

    def params(self, family):
        p = m.as_exported(m.init(family, 3))
        gen = torch.Generator().manual_seed(5)
        for name, t in p.items():  # make norms, biases and gains matter; factors of 8 keep bf16 values exact
            if t.dim() <= 1 and not name.endswith(m.FP32_NAMES):
                p[name] = (t + 0.2 * torch.randn(t.shape, generator=gen)).to(torch.bfloat16).float()
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down")):
                p[name] = t * 8
            if name.endswith("f_b_proj.weight"):  # gates from about 0 to below -20: some channels forget everything at once
                p[name] = t * 8
            if name.endswith("e_score_correction_bias"):
                p[name] = 0.05 * torch.randn(t.shape, generator=gen)
        return p

    def test_kda_logits_and_gradients(self):
        p = {n: t.requires_grad_() for n, t in self.params("kda").items()}
        ids = torch.randint(0, 1200, (2, 128), generator=torch.Generator().manual_seed(1))
        pos = torch.arange(128).repeat(2)
        net = forward.Net("kda", p, "cpu", torch.float32)
        x = net.hidden(ids.flatten(), pos, [(1, 128), (1, 128)])
        self.assertLess(net.lowest_gate.item(), -20)
        logits = net.logits(x).view(2, 128, -1)
        with tempfile.TemporaryDirectory() as directory:
            model = reference("kda", p, IDS["kda"], directory)
            expected = model(input_ids=ids).logits
            self.assertLess((logits - expected).abs().max().item(), 2e-4)
            w = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
            (logits * w).sum().backward()
            (expected * w).sum().backward()
        named = dict(model.named_parameters())
        for ours, theirs in [("model.embed_tokens.weight",) * 2, ("model.layers.1.self_attn.f_b_proj.weight", "model.layers.1.self_attn.forget_gate.f_b_proj.weight"),
                             ("model.layers.0.self_attn.A_log", "model.layers.0.self_attn.forget_gate.A_log"), ("model.layers.3.self_attn.b_proj.weight",) * 2,
                             ("model.layers.2.self_attn.kv_b_proj.weight",) * 2, ("model.layers.4.block_sparse_moe.experts.gate_up", "model.layers.4.mlp.experts.gate_up_proj"),
                             ("model.layers.4.block_sparse_moe.gate.weight", "model.layers.4.mlp.gate.weight")]:
            a, b = p[ours].grad, named[theirs].grad
            self.assertLess(((a - b).norm() / b.norm()).item(), 1e-3, ours)

    def test_gdn_logits_and_gradients_with_images(self):
        p = {n: t.requires_grad_() for n, t in self.params("gdn").items()}
        gen = torch.Generator().manual_seed(1)
        shapes = [(6, 8), (8, 6)]
        ids = torch.randint(0, 1200, (2, 128), generator=gen)
        ids[0, 5:17], ids[1, 30:42] = IDS["gdn"]["<|image_pad|>"], IDS["gdn"]["<|image_pad|>"]
        source = torch.full((2, 128), -1)
        source[0, 5:17], source[1, 30:42] = torch.arange(12), 16 + torch.arange(12)
        patches = torch.randint(0, 256, (2, 64, 768), generator=gen).to(torch.uint8)
        pos3 = []
        for start, (h, w) in zip((5, 30), shapes):
            cells = torch.arange(12)
            image = torch.stack([torch.full((12,), start), start + cells // (w // 2), start + cells % (w // 2)])
            after = start + max(h, w) // 2
            pos3.append(torch.cat([torch.arange(start).expand(3, -1), image, (after + torch.arange(128 - start - 12)).expand(3, -1)], 1))
        net = forward.Net("gdn", p, "cpu", torch.float32)
        seen = net.see(patches, torch.tensor([0, 1]), shapes)
        x = net.hidden(ids.flatten(), torch.arange(128).repeat(2), [(2, 128)], torch.cat(pos3, 1), seen, source.flatten())
        logits = net.logits(x).view(2, 128, -1)
        pixels = torch.cat([patches[i, :48].view(48, 3, 1, 256).expand(-1, -1, 2, -1).reshape(48, -1) for i in range(2)]).float() / 127.5 - 1
        with tempfile.TemporaryDirectory() as directory:
            model = reference("gdn", p, IDS["gdn"], directory)
            expected = model(input_ids=ids, pixel_values=pixels, image_grid_thw=torch.tensor([[1, h, w] for h, w in shapes]),
                             mm_token_type_ids=(ids == IDS["gdn"]["<|image_pad|>"]).int()).logits
            self.assertLess((logits - expected).abs().max().item(), 2e-4)
            w = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
            (logits * w).sum().backward()
            (expected * w).sum().backward()
        named = dict(model.named_parameters())
        for name in ["model.language_model.layers.0.linear_attn.in_proj_qkv.weight", "model.language_model.layers.1.linear_attn.A_log", "model.language_model.layers.3.linear_attn.conv1d.weight",
                     "model.language_model.layers.2.self_attn.q_proj.weight", "model.visual.patch_embed.proj.weight", "model.visual.pos_embed.weight",
                     "model.visual.blocks.1.attn.qkv.weight", "model.language_model.embed_tokens.weight"]:
            a, b = p[name].grad, named[name].grad
            self.assertLess(((a - b).norm() / b.norm()).item(), 1e-3, name)


if __name__ == "__main__":
    unittest.main()
