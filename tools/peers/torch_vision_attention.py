#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times torch's scaled_dot_product_attention on vision-encoder shapes: the peer of
`fluvial bench op --op vision_attention --suite qwen2_5_vl,qwen3_vl`.

q, k and v are strided views of one packed [tokens, 3, heads, D] buffer, as a vision encoder has them. Sequences of one
length go as one dense batch, which is the fastest that torch can do with them; other batches as one call per sequence,
as transformers does. On CUDA the backends that torch has are timed one after another, and FlashAttention-2's varlen
entry when torch offers it. Prints the best time, on a CPU also the best active time (CPU time over threads).

  torch_vision_attention.py [--device cpu] [--threads 2] [--dtype bfloat16] [--repeats 5] [LINE...]

LINE is a problem line: "vision_attention heads=16 d=80 lens=64x64".
"""
import argparse
import time

import torch
import torch.nn.functional as F

LINES = [
    "vision_attention heads=16 d=80 lens=64x64",
    "vision_attention heads=16 d=80 lens=1024x64",
    "vision_attention heads=16 d=80 lens=1024,4096,256,2048,576,192",
    "vision_attention heads=16 d=80 lens=4096",
    "vision_attention heads=16 d=80 lens=16384",
    "vision_attention heads=16 d=72 lens=8x1024",
    "vision_attention heads=16 d=72 lens=4096",
]


def parse(line):
    fields = dict(word.split("=", 1) for word in line.split()[1:])
    lengths = []
    for item in fields["lens"].split(","):
        count, _, length = item.rpartition("x")
        lengths += [int(length)] * (int(count) if count else 1)
    return int(fields["heads"]), int(fields["d"]), lengths


def maker(heads, d, lengths, dtype, device):
    tokens = sum(lengths)
    qkv = torch.randn(tokens, 3, heads, d, dtype=torch.float32, device=device).to(dtype)
    if len(set(lengths)) == 1:
        views = [qkv[:, i].view(len(lengths), lengths[0], heads, d).transpose(1, 2) for i in range(3)]
        return lambda: F.scaled_dot_product_attention(*views)
    parts = []
    start = 0
    for n in lengths:
        parts.append([qkv[start:start + n, i].unsqueeze(0).transpose(1, 2) for i in range(3)])
        start += n
    return lambda: [F.scaled_dot_product_attention(*p) for p in parts]


def varlen(heads, d, lengths, dtype, device):
    qkv = torch.randn(sum(lengths), 3, heads, d, dtype=torch.float32, device=device).to(dtype)
    starts = torch.tensor([0] + lengths, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    longest = max(lengths)
    q, k, v = (qkv[:, i] for i in range(3))
    return lambda: torch.ops.aten._flash_attention_forward(q, k, v, starts, starts, longest, longest, 0.0, False, False)


def time_cpu(run, repeats, threads):
    run()
    wall, active = [], []
    for _ in range(repeats):
        start, cpu = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - start)
        active.append((time.process_time() - cpu) / threads)
    return f"best {min(wall) * 1e6:.0f} us, active {min(active) * 1e6:.0f} us"


def time_cuda(run, repeats):
    for _ in range(3):
        run()
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    times = []
    for _ in range(max(repeats, 20)):
        flush.zero_()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    times.sort()
    return f"median {times[len(times) // 2]:.1f} us, best {times[0]:.1f} us"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("lines", nargs="*", default=LINES)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    dtype = getattr(torch, args.dtype)
    with torch.inference_mode():
        for line in args.lines:
            shape = parse(line)
            if args.device == "cpu":
                text = time_cpu(maker(*shape, dtype, "cpu"), args.repeats, args.threads)
                print(f"{line} {args.dtype} threads={args.threads}: {text}", flush=True)
                continue
            from torch.nn.attention import SDPBackend, sdpa_kernel

            for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
                try:
                    with sdpa_kernel(backend):
                        text = time_cuda(maker(*shape, dtype, args.device), args.repeats)
                except RuntimeError as error:
                    text = f"cannot: {str(error).splitlines()[0]}"
                print(f"{line} {args.dtype} {backend.name}: {text}", flush=True)
            try:
                text = time_cuda(varlen(*shape, dtype, args.device), args.repeats)
            except (RuntimeError, AttributeError) as error:
                text = f"cannot: {str(error).splitlines()[0]}"
            print(f"{line} {args.dtype} FLASH varlen: {text}", flush=True)


if __name__ == "__main__":
    main()
