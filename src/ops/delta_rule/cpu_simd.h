// SPDX-License-Identifier: Apache-2.0
// Between cpu.cc (tasks, workspace) and the SIMD files (arithmetic).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

/// What the CPU bodies need to know of a sequence. The table of all of them is built once per contents of a plan.
struct SequenceTask {
  int64_t begin = 0, end = 0;  ///< tokens
  int32_t sequence = 0;
  int32_t read_slot = -1, write_slot = -1;
  int64_t checkpoint_row = 0;  ///< the first one of the sequence
};

/// One (sequence, value head, range of V): columns of S^T are independent, so a range is exact.
struct HeadCall {
  const Problem* problem = nullptr;
  const Args* args = nullptr;
  SequenceTask sequence;
  int64_t head = 0;
  int64_t heads = 1;               ///< neighbours from `head` on; more than one only for RunChunks16 and all of V
  int64_t v_begin = 0, v_end = 0;  ///< begin is a multiple of kPanel
  float* scratch = nullptr;        ///< the body's ScratchFloats, 64-byte aligned
};

/// Rows of q, k and gates are padded to this many floats with zeros; a multiple of every vector length.
inline constexpr int64_t kLanePad = 16;
/// V is padded to this: two vectors of the widest target.
inline constexpr int64_t kPanel = 32;
/// Tokens per chunk. GDN's decay is a scalar, any chunk is safe; KDA factors exp(G_i - G_j) and stays within
/// 16 tokens (16 * 5 nats = 80 < 88).
inline constexpr int64_t kGdnChunk = 64;
inline constexpr int64_t kKdaChunk = 16;
/// Tokens per chunk and most heads per task of the bf16 chunks.
inline constexpr int64_t kChunk16 = 32;
inline constexpr int64_t kMaxHeads16 = 2;

inline int64_t PadTo(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

size_t TokenScratchFloats(const Problem& problem);
size_t ChunkScratchFloats(const Problem& problem);
size_t Bf16ScratchFloats(const Problem& problem);

/// Token by token, S in rows [V, K]: decode, and sequences too short for chunks.
void RunTokens(const HeadCall& call);

/// Chunked WY form, S^T in panels [V/panel][K][panel].
void RunChunks(const HeadCall& call);

/// The same with bf16 operands where S takes part; only for io bf16 and when CpuHasBf16().
void RunChunks16(const HeadCall& call);

/// Runs `chunks` (RunTokens for decode and short sequences) over sequences x heads, and ranges of V when there are
/// fewer of those than threads. `scratch_floats` per thread come from the workspace. Up to `heads` neighbours are one
/// task while that leaves work for all threads.
using HeadBody = void (*)(const HeadCall&);
Status RunHeads(Stream& stream, const Problem& problem, const Args& args, Workspace workspace, int64_t scratch_floats,
                HeadBody chunks, int64_t heads = 1);
size_t HeadsWorkspaceBytes(int threads, int64_t scratch_floats);

/// Runs dependent-free fp32 multiply-adds for some milliseconds and gives their number: the rate of one thread.
double SpinMultiplyAdds();

/// x <- (x + 1) / 2 for n floats: what reading and writing memory in place can reach.
void UpdateInPlace(float* x, int64_t n);

/// Vector instruction set the dynamic dispatch picked ("AVX3", ...).
const char* CpuTargetName();

}  // namespace fluvial::ops::delta_rule
