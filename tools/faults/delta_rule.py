#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does `fluvial verify` notice mistakes in the delta rule's CPU code?

Copies the sources to a scratch folder, plants one fault at a time, builds the program and runs the check that must fail.
For each fault: the line that verify prints, and whether that line alone shows the fault again. Needs what building needs.

    tools/faults/delta_rule.py [--work DIR] [--jobs N] [NAME ...]

Exit status 1 when a fault was not noticed, did not build, or when the code without faults fails.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys

ROOM = "src/ops/delta_rule/"
VERIFY = "verify"
REFILL = "delta_rule_refill_test"

# name, file, what stands there (exactly once), what is put there, who must notice
FAULTS = [
    ("write_decays_from_start", ROOM + "cpu_chunks_bf16_simd.cc",
     "hn::Mul(fs::Exp(d, hn::Sub(last, Gi)), key)", "hn::Mul(fs::Exp(d, Gi), key)", [VERIFY, "--backend", "cpu_bf16"]),
    ("keys_of_the_head_before", ROOM + "cpu_chunks_bf16_simd.cc",
     "if (i == 0 || heads[i].head % group == 0) GdnKeys", "if (i == 0) GdnKeys",
     [VERIFY, "--backend", "cpu_bf16", "--op", "gdn_prefill"]),
    ("odd_tokens_not_decayed", ROOM + "cpu_bf16.cc",
     "_mm512_mul_ps(e, _mm512_load_ps(inverse[i + 1]))", "_mm512_load_ps(inverse[i + 1])",
     [VERIFY, "--backend", "cpu_bf16", "--op", "kda_prefill"]),
    ("writes_behind_the_sequence", ROOM + "cpu_bf16.cc",
     "if (m + i < count) {", "if (m + i < count + 1) {", [VERIFY, "--backend", "cpu_bf16"]),
    ("output_misses_its_own_token", ROOM + "cpu_chunks_simd.cc",
     "hn::Lt(column, hn::Set(di, static_cast<int32_t>(i + 1)))", "hn::Lt(column, hn::Set(di, static_cast<int32_t>(i)))",
     [VERIFY, "--backend", "cpu", "--op", "gdn_prefill"]),
    ("factors_of_any_range", ROOM + "cpu_chunks-inl.h",
     "constexpr float kMaxRange = 80.0f;", "constexpr float kMaxRange = 1e9f;",
     [VERIFY, "--backend", "cpu", "--op", "kda_prefill"]),
    ("eps_of_the_other_norm", ROOM + "cpu_prepare-inl.h",
     "s + p.norm_eps : std::max(s, p.norm_eps)", "std::max(s, p.norm_eps) : std::max(s, p.norm_eps)",
     [VERIFY, "--backend", "cpu"]),
    ("heads_dealt_in_turn", ROOM + "cpu_prepare-inl.h",
     "  const int64_t key_head = c.head / (p.hv / p.hk);\n  const float exp_a_log", "  const int64_t key_head = c.head % p.hk;\n  const float exp_a_log",
     [VERIFY, "--backend", "cpu"]),
    ("two_sigmoid_is_one", ROOM + "cpu_prepare-inl.h",
     "p.beta == BetaForm::kTwoSigmoid ? 2.0f : 1.0f", "p.beta == BetaForm::kTwoSigmoid ? 1.0f : 1.0f",
     [VERIFY, "--backend", "cpu"]),
    ("no_slot_is_slot_0", ROOM + "cpu_tokens_simd.cc",
     "return slot < 0 ? nullptr : pool + slot", "return pool + std::max<int64_t>(slot, 0)",
     [VERIFY, "--backend", "cpu", "--op", "gdn_decode"]),
    ("checkpoints_of_all_at_row_0", ROOM + "cpu.cc",
     "plan.write_slots()[n],\n                      checkpoint_rows[n]}", "plan.write_slots()[n],\n                      0}",
     [VERIFY, "--backend", "cpu"]),
    ("substitution_stops_early", ROOM + "cpu_chunks-inl.h",
     "for (int j = 0; j < kSolveRows - 1; ++j) {", "for (int j = 0; j < kSolveRows - 2; ++j) {",
     [VERIFY, "--backend", "cpu"]),
    ("plans_without_generation", "src/ops/common/plan_cache.h",
     " && e.generation == plan.generation()", "", [REFILL]),
    ("plans_by_generation_alone", "src/ops/common/plan_cache.h",
     "e.id == plan.id() && ", "", [REFILL]),
]


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)


class Copy:
    def __init__(self, root, work, jobs):
        self.root, self.work, self.jobs = root, work, jobs
        # Two levels below the sources, as a preset: a compiler cache then knows what has not changed.
        self.build = work / "build" / "faults"
        for part in ("CMakeLists.txt", "cmake", "include", "src"):
            target = work / part
            if target.is_dir():
                shutil.rmtree(target)
            (shutil.copytree if (root / part).is_dir() else shutil.copy)(root / part, target)
        made = run(["cmake", "-S", str(work), "-B", str(self.build), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                    "-DFLUVIAL_CUDA=OFF", "-DFLUVIAL_BENCHMARKS=OFF"])
        if made.returncode != 0:
            sys.exit("cmake failed:\n" + made.stdout)

    def compile(self):
        return run(["ninja", "-C", str(self.build), "-j", str(self.jobs), "fluvial", REFILL])

    def check(self, who):
        if who[0] == REFILL:
            r = run([str(self.build / "tests" / REFILL)])
            return r.returncode, [l for l in r.stdout.splitlines() if "[  FAILED  ] " in l and "ms)" in l]
        r = run([str(self.build / "fluvial"), *who, "--device", "cpu"])
        return r.returncode, [l for l in r.stdout.splitlines() if l.startswith("FAILED ")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="build/faults", help="scratch folder")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("names", nargs="*", help="only these faults")
    args = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]
    work = (root / args.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    copy = Copy(root, work, args.jobs)
    built = copy.compile()
    if built.returncode != 0:
        sys.exit("the code without faults does not build:\n" + built.stdout[-4000:])
    for who in ([VERIFY], [REFILL]):
        status, lines = copy.check(who)
        if status != 0:
            sys.exit("the code without faults fails: " + "\n".join(lines[:3]))
    print("without faults: passes", flush=True)
    missed = 0
    for name, file, old, new, who in FAULTS:
        if args.names and name not in args.names:
            continue
        path = work / file
        text = path.read_text()
        if text.count(old) != 1:
            print(f"{name}: {file} holds the text {text.count(old)} times: update this script", flush=True)
            missed += 1
            continue
        path.write_text(text.replace(old, new))
        try:
            built = copy.compile()
            if built.returncode != 0:
                print(f"{name}: does not build\n{built.stdout[-1500:]}", flush=True)
                missed += 1
                continue
            status, lines = copy.check(who)
            caught = status == 1 and bool(lines)
            again = ""
            if caught and who[0] == VERIFY:
                # "FAILED backend on device: LINE: what is wrong"
                line = lines[0].split(": ")[1]
                repeated, _ = copy.check([VERIFY, *who[1:3], "--problem", line])
                caught = repeated == 1
                again = "; its line alone shows it" if caught else "; BUT ITS LINE ALONE DOES NOT SHOW IT"
            missed += 0 if caught else 1
            print(f"{name}: {'caught' if caught else 'NOT CAUGHT'}, {len(lines)} failures{again}", flush=True)
            if lines:
                print("    " + lines[0][:300], flush=True)
        finally:
            path.write_text(text)
    print(f"{missed} not caught", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
