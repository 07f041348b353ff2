#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the delta rule as transformers runs it on a CPU with torch: the peer of `fluvial bench op --suite cpu`.

Same operator, same inputs in kind: bf16 q, k, v and gates, fp32 state in and out, q/k normalised inside, gates and beta
from their logits. Prints the best wall time and the best active time (CPU time of the process over the threads).

  torch_delta_rule.py [--threads 2] [--tokens 4096] [--repeats 3] [gdn16_32 gdn16_16 kda32]
"""
import argparse
import time

import torch
import torch.nn.functional as F


def gdn(tokens, hk, hv):
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

    q, k = (torch.randn(1, tokens, hk, 128, dtype=torch.bfloat16) for _ in range(2))
    v = torch.randn(1, tokens, hv, 128, dtype=torch.bfloat16)
    a, b = (torch.randn(1, tokens, hv, dtype=torch.bfloat16) for _ in range(2))
    a_log, dt_bias = torch.rand(hv), torch.randn(hv) * 0.25
    state = torch.randn(1, hv, 128, 128) * 0.25

    def run():
        g = -a_log.exp() * F.softplus((a - 3).float() + dt_bias)
        return torch_chunk_gated_delta_rule(q, k, v, g=g, beta=b.sigmoid(), initial_state=state,
                                            output_final_state=True, use_qk_l2norm_in_kernel=True)

    return run


def kda(tokens, heads):
    from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention

    q, k, v, f = (torch.randn(1, tokens, heads, 128, dtype=torch.bfloat16) for _ in range(4))
    b = torch.randn(1, tokens, heads, dtype=torch.bfloat16)
    a_log, dt_bias = torch.rand(heads, 1), torch.randn(heads, 128) * 0.25
    state = torch.randn(1, heads, 128, 128) * 0.25

    def run():
        g = -a_log.exp() * F.softplus((f - 3).float() + dt_bias)
        return chunk_kimi_delta_attention(q, k, v, g, b.sigmoid(), initial_state=state, output_final_state=True,
                                          use_qk_l2norm_in_kernel=True)

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("names", nargs="*", default=["gdn16_32", "gdn16_16", "kda32"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    makers = {"gdn16_32": lambda: gdn(args.tokens, 16, 32), "gdn16_16": lambda: gdn(args.tokens, 16, 16),
              "kda32": lambda: kda(args.tokens, 32)}
    for name in args.names:
        run = makers[name]()
        wall, active = [], []
        with torch.inference_mode():
            run()
            for _ in range(args.repeats):
                start, cpu = time.perf_counter(), time.process_time()
                run()
                wall.append(time.perf_counter() - start)
                active.append((time.process_time() - cpu) / args.threads)
        print(f"{name} tokens={args.tokens} threads={args.threads}: best {min(wall) * 1e6:.0f} us, "
              f"active {min(active) * 1e6:.0f} us", flush=True)


if __name__ == "__main__":
    main()
