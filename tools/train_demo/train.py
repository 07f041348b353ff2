# SPDX-License-Identifier: Apache-2.0
"""Trains the demo models on one GPU and writes them in Hugging Face format.

    python3 tools/train_demo/train.py --out OUT --minutes 8.5              both, side by side on one GPU
    python3 tools/train_demo/train.py --out OUT --minutes 8.5 --family kda
    python3 tools/train_demo/train.py --out OUT --minutes 1 --smoke        a few steps on the CPU: the whole path, not a model

Everything random comes from --seed; how many steps fit the minutes depends on the machine, so weights differ between runs.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

import batches
import forward
import generate
import loader
import model as m
import muon
import prepare

HERE = os.path.dirname(os.path.abspath(__file__))
WEIGHTS = {"words": 1.0, "pictures": 1.0, "text": 1.0, "recall": 2.0}
BALANCE = 0.01  # weight of the routers' balance loss


class Log:

    def __init__(self, path, name):
        self.file, self.name, self.start = open(path, "a", encoding="utf-8"), name, time.time()

    def __call__(self, text):
        line = f"[{self.name} {time.time() - self.start:6.1f}s] {text}"
        print(line, flush=True)
        self.file.write(line + "\n")
        self.file.flush()


def schedule(progress, warm, args):
    """Factor of the learning rates: warm-up by steps, then flat, then linear to zero."""
    return min(1.0, warm) * min(1.0, max(0.0, (1.0 - progress) / (1.0 - args.flat)) + 0.01)


def step_loss(net, batch):
    segments, kinds, t = batch
    vision = net.see(t["patches"], t["grids"].long(), batches.GRIDS) if net.family == "gdn" else None
    x = net.hidden(t["ids"].long(), t["pos"].long(), segments, t["pos3"].long() if vision is not None else None, vision, t["source"].long() if vision is not None else None)
    labels = t["labels"].long()
    losses, right = net.loss(x, labels)
    known = labels >= 0
    total, weight, stats, at = 0.0, 0.0, [], 0
    for kind, (rows, length) in zip(kinds, segments):
        part = slice(at, at + rows * length)
        n, s = known[part].sum(), losses[part].sum()
        total, weight = total + WEIGHTS[kind] * s, weight + WEIGHTS[kind] * n
        stats += [s.detach(), (right[part] & known[part]).sum(), n]
        at += rows * length
    return total / weight + BALANCE * net.uneven, torch.stack([v.float() for v in stats]).view(-1, 3)


def balance(net, rate):
    """The routers' bias moves towards equal load (DeepSeek-V3, arXiv 2412.19437, section 2.1.2); no gradient."""
    for name, load in net.load:
        net.p[name].data.add_(torch.sign(load.mean() - load) * rate)


def export(params, args, family, directory, ids, note):
    from safetensors.torch import save_file
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    source = os.path.join(args.models, prepare.MODELS[family])
    for name in os.listdir(source):
        if name.endswith((".json", ".jinja")) and name != "config.json":
            shutil.copy(os.path.join(source, name), directory)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
        json.dump(m.config(family, ids), f, indent=2)
        f.write("\n")
    save_file(m.exported(params), os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(directory, "model.safetensors"), 0o644)
    with open(os.path.join(directory, "training.json"), "w", encoding="utf-8") as f:
        json.dump(note, f, indent=2)
        f.write("\n")


def pack(directory, out):
    """One file per model: folders and many small files are awkward to bring back from another machine."""
    path = os.path.join(out, os.path.basename(directory) + ".tar")
    with tarfile.open(path + ".part", "w") as tar:
        tar.add(directory, arcname=os.path.basename(directory))
    os.replace(path + ".part", path)
    return os.path.getsize(path)


def warm_up(net, optimiser, data, log):
    """Compiles the regions; without a compiler (or with a broken one) training goes on uncompiled."""
    begin = time.time()
    try:
        loss, _ = step_loss(net, data.next())
        loss.backward()
    except Exception as error:  # torch.compile raises many types
        log(f"uncompiled from here on, because: {str(error)[:600]}")
        net.compiled = False
        loss, _ = step_loss(net, data.next())
        loss.backward()
    for t in net.p.values():
        t.grad = None
    log(f"first step {time.time() - begin:.1f} s, loss {loss.item():.3f}, compiled: {net.compiled}")


def train(args):
    begin = time.time()
    family, name = args.family, prepare.MODELS[args.family]
    os.makedirs(args.out, exist_ok=True)
    log = Log(os.path.join(args.out, name + ".log"), name)
    directory = os.path.join(args.models, name)
    data = loader.Loader(family, directory, args.tokens, args.seed, args.workers, args.device, args.stage)
    enc = batches.Encoder(family, directory)
    ids = {t: enc.tokenizer.token_to_id(t) for t in prepare.vocabulary.SPECIAL[family]}
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    gpu = args.device != "cpu"
    if gpu:
        torch.cuda.set_device(args.device)
    params = {n: t.to(args.device).requires_grad_(not n.endswith("e_score_correction_bias")) for n, t in m.init(family, args.seed).items()}
    if args.start:
        read_weights(params, os.path.join(args.start, name), log)
    dtype = torch.bfloat16 if gpu else torch.float32
    net = forward.Net(family, params, args.device, dtype, compiled=args.compile and gpu)
    optimiser = muon.Optimiser(params, args.muon_lr, args.adam_lr, gpu, dtype)
    data.start()
    log(f"{forward.parameter_count(params)} parameters, {args.tokens} tokens a step, seed {args.seed}, torch {torch.__version__}, "
        f"{torch.cuda.get_device_name() if gpu else 'CPU'}, {args.workers} workers, {len(prepare.pictures.font_files())} fonts")
    warm_up(net, optimiser, data, log)
    end = begin + args.minutes * 60 - args.reserve
    start, step, shown, snapshot, stats, checks = time.time(), 0, time.time(), None, None, [0.4, 0.75]
    while True:
        progress = (time.time() - start) / max(1e-9, end - start)
        if progress >= 1 or (args.steps and step >= args.steps):
            break
        data.progress.value = progress
        loss, part = step_loss(net, batch := data.next())
        loss.backward()
        optimiser.step(schedule(progress, (step + 1) / args.warmup, args), 0.85 + 0.1 * min(1.0, step / 300))
        if family == "kda" and progress < 0.7:
            balance(net, 1e-3)
        stats = part if stats is None else stats + part if stats.shape == part.shape else part
        step += 1
        if step % args.every == 0:
            s = stats.tolist()
            took, shown = time.time() - shown, time.time()
            parts = "  ".join(f"{k} {a / max(1, n):.4f}/{100 * b / max(1, n):.1f}%" for k, (a, b, n) in zip(batch[1], s))
            more = f"  lowest gate {net.lowest_gate.item():.1f}, load {min(l.min().item() for _, l in net.load):.3f}..{max(l.max().item() for _, l in net.load):.3f}" if family == "kda" else ""
            log(f"step {step} {100 * progress:.0f}%  {1000 * took / args.every:.1f} ms  {parts}  reused {data.reused}{more}")
            stats = None
            if not math.isfinite(sum(a for a, _, _ in s)):
                log("not finite: back to the last snapshot, with half the learning rates")
                for n, t in params.items():
                    t.data.copy_(snapshot[n])
                optimiser = muon.Optimiser(params, optimiser.muon_lr / 2, optimiser.adam_lr / 2, gpu, dtype)
            elif step % (10 * args.every) == 0 or snapshot is None:
                snapshot = {n: t.detach().clone() for n, t in params.items()}
        if checks and progress >= checks[0]:
            checks.pop(0)
            if args.check_items:
                scores = {k: generate.accuracy(net, enc, directory, k, args.check_items)[0] for k in generate.answers.eval_files(directory)}
                log(f"{args.check_items} items each, bf16: {scores}")
            halfway = os.path.join(tempfile.mkdtemp(), name)
            export(params, args, family, halfway, ids, {"unfinished": progress})
            pack(halfway, args.out)
            shown = time.time()
    data.stop()
    seconds = time.time() - start
    log(f"{step} steps in {seconds:.0f} s, {data.fresh} fresh batches, {data.reused} used again")
    note = {"seed": args.seed, "steps": step, "tokens_per_step": args.tokens, "seconds": round(seconds), "machine": torch.cuda.get_device_name() if gpu else "CPU",
            "torch": torch.__version__, "muon_lr": args.muon_lr, "adam_lr": args.adam_lr, "stage": args.stage, "continued": bool(args.start)}
    work = os.path.join(tempfile.mkdtemp(), name)
    export(params, args, family, work, ids, note)
    log(f"exported: {pack(work, args.out)} bytes")
    if gpu:
        torch.cuda.empty_cache()
    torch.set_float32_matmul_precision("highest")
    final = forward.Net(family, m.as_exported(params), args.device, torch.float32)
    result = {}
    for kind in generate.answers.eval_files(directory):
        at = time.time()
        score, said = generate.accuracy(final, enc, directory, kind, args.eval_items)
        result[kind] = score
        log(f"eval {kind}: {100 * score:.1f} % in {time.time() - at:.1f} s (fp32, greedy)")
        with open(os.path.join(work, f"answers-{kind}.json"), "w", encoding="utf-8") as f:
            json.dump(said, f)
        with open(os.path.join(work, "training.json"), "w", encoding="utf-8") as f:
            json.dump({**note, "accuracy": result}, f, indent=2)
        pack(work, args.out)
    log("done")


def read_weights(params, directory, log):
    """Continues from an exported checkpoint (bf16 weights)."""
    from safetensors.torch import load_file
    have = load_file(os.path.join(directory, "model.safetensors"))
    for name, t in params.items():
        base = name.rsplit(".", 1)[0]
        if name.endswith("experts.gate_up"):
            value = torch.stack([torch.cat([have[f"{base}.{e}.w1.weight"], have[f"{base}.{e}.w3.weight"]]) for e in range(m.EXPERTS)])
        elif name.endswith("experts.down"):
            value = torch.stack([have[f"{base}.{e}.w2.weight"] for e in range(m.EXPERTS)])
        else:
            value = have[name]
        t.data.copy_(value)
    log(f"continues from {directory}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=8.5, help="wall-clock time of the whole command, evaluation included")
    parser.add_argument("--family", choices=["gdn", "kda", "both"], default="both")
    parser.add_argument("--models", default=os.path.join(HERE, "..", "..", "models"))
    parser.add_argument("--start", help="folder with exported models to continue from")
    parser.add_argument("--stage", type=int, default=1, choices=[1, 2], help="2: the mixture that continues demo-gdn-vl, mostly words to read")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=65536, help="tokens a step, a multiple of 4096")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.003)
    parser.add_argument("--flat", type=float, default=0.35, help="share of the time before the learning rate falls")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--reserve", type=float, default=60, help="seconds kept for export and evaluation")
    parser.add_argument("--eval-items", type=int, default=0)
    parser.add_argument("--check-items", type=int, default=100, help="items of each eval set asked at 40 and 75 %% of the training, 0: none")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        args.device, args.tokens, args.workers, args.every, args.reserve, args.eval_items, args.warmup = "cpu", 4096, 1, 2, 20, 3, 10
    if args.family != "both":
        train(args)
        return
    rest = [a for a in sys.argv[1:]]
    runs = [subprocess.Popen([sys.executable, os.path.abspath(__file__), *rest, "--family", f]) for f in prepare.MODELS]
    sys.exit(max(abs(r.wait()) for r in runs))


if __name__ == "__main__":
    main()
