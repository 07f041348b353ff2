// SPDX-License-Identifier: Apache-2.0
// What a CTA of the chunk-16 prefill kernel works on: a list of pieces, each a run of chunks of one sequence and head.
//
// Mode::kWhole gives every CTA one sequence and head. The balanced modes lay all (sequence, head) tasks in a row and
// cut the row into equal parts, one per CTA, so that a cut may fall inside a task. Cut j is the start of CTA j's part;
// a cut inside a task is a boundary, and the piece that starts there runs from zero (sm90_chunk16.cuh says how it is
// mended).
#pragma once

#include "ops/common/sm90_ptx.cuh"
#include "ops/delta_rule/sm90_delta_params.h"

namespace fluvial::sm90::chunk16 {

constexpr int kChunk = 16;
constexpr int kDim = 128;  // K = V

enum class Mode {
  kWhole,     ///< one CTA per sequence and head
  kBalanced,  ///< equal parts; pieces behind a boundary run from zero and are checked by the CTA before
  kTransfer,  ///< M of the pieces whose check failed
  kReplay,    ///< these pieces from their true start
};

constexpr int kMaxPieces = 64;  // of a round; a part of many short tasks takes several
constexpr int kTaskWeight = 3;  // what beginning and ending a task costs, in chunks
constexpr int kMinPiece = 8;    // chunks on either side of a boundary, at least
constexpr int kMinPart = 16 + kTaskWeight;

/// States that a piece behind a boundary leaves after 2, 4, ... 32 chunks.
constexpr int kSaves = 5;
__device__ __forceinline__ int SavePoint(int k) { return 2 << k; }

/// Where element (v, k) of a state lies in a cell: math thread v / 64 * 128 + ... holds it as wgmma's accumulator, i.e.
/// rows (v % 16 >= 8) and pairs of columns, and four of its 64 values make 16 bytes.
__device__ __forceinline__ int FragmentIndex(int v, int k) {
  const int thread = v / 16 * 32 + v % 8 * 4 + k % 8 / 2;
  const int value = k / 8 * 4 + v % 16 / 8 * 2 + k % 2;
  return (value / 4 * 256 + thread) * 4 + value % 4;
}

/// Workspace of a boundary: V x K fp32 states as FragmentIndex lays them out.
struct Cell {
  float end[kDim * kDim];    // at the boundary, by the CTA before
  float final[kDim * kDim];  // at the sequence's end, by the piece behind the boundary
  float saves[kSaves][kDim * kDim];
};
static_assert(sizeof(Cell) == kBalancedCell);
/// Beside the cells; zeroed before the balanced run.
struct Boundary {
  int saved;   // states saved so far, behind the boundary
  int failed;  // the state before did not meet any of them
  int task;    // 1 + sequence * heads + head; 0: no boundary here
  int last;    // the piece ends the sequence
};
static_assert(sizeof(Boundary) == kBalancedBoundary);

/// One run of chunks. `first` counts chunks of the CTA; rows = tokens from `token` to the end of the sequence or piece.
struct alignas(16) Piece {
  int first, end;   // chunks of the CTA: [first, end), overrun included
  int token, rows;  // first token; tokens of [first, end)
  int head, seq;
  int own;    // chunks without the overrun into the next piece
  int flags;  // kFromZero, kCut, kEndsSequence
};
constexpr int kFromZero = 1;      // starts behind a boundary
constexpr int kCut = 2;           // ends at a boundary: runs over into the next piece
constexpr int kEndsSequence = 4;  // its end is the sequence's

/// A position in the row of tasks.
struct Cut {
  int seq, head, chunk;
  int chunks;  // of that sequence
};

/// The part of this CTA, from cut Part() on. Later parts first: a CTA waits for the one behind its end, which must have
/// been started before it.
__device__ __forceinline__ int Part() { return static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x); }

struct PieceTable {
  Piece piece[kMaxPieces];
  int pieces;
  int next_own;  // chunks of the piece behind the last one's end, when that is cut
  bool more;     // another round follows, from `resume`
  Cut resume;
};

__device__ __forceinline__ int ChunksOf(const DeltaParams& p, int seq) {
  return static_cast<int>((p.offsets[seq + 1] - p.offsets[seq] + kChunk - 1) / kChunk);
}

/// Sum of all weights; every lane of the calling warp returns it.
__device__ __forceinline__ int64_t TotalWeight(const DeltaParams& p, int lane) {
  int64_t total = 0;
  for (int n = lane; n < p.header->sequences; n += 32) total += ChunksOf(p, n) + kTaskWeight;
  for (int m = 16; m > 0; m >>= 1) total += __shfl_xor_sync(~0u, total, m);
  return total * p.hv;
}

/// Parts that the row is cut into: no more than the grid, none below kMinPart.
__device__ __forceinline__ int Parts(int64_t total, int grid) {
  return static_cast<int>(max(int64_t{1}, min(static_cast<int64_t>(grid), total / kMinPart)));
}

/// Cut `j` of `parts`; the calling warp together.
__device__ __forceinline__ Cut FindCut(const DeltaParams& p, int64_t total, int parts, int j, int lane) {
  const int sequences = p.header->sequences;
  int64_t x = j >= parts ? total : total * j / parts, base = 0;
  for (int n0 = 0; n0 < sequences; n0 += 32) {
    const int n = n0 + lane;
    int64_t end = n < sequences ? static_cast<int64_t>(ChunksOf(p, n) + kTaskWeight) * p.hv : 0;
    for (int m = 1; m < 32; m <<= 1) {
      const int64_t up = __shfl_up_sync(~0u, end, m);
      if (lane >= m) end += up;
    }
    const uint32_t beyond = __ballot_sync(~0u, x < base + end);
    if (beyond != 0) {
      const int at = __ffs(beyond) - 1;
      Cut cut;
      cut.seq = n0 + at;
      cut.chunks = ChunksOf(p, cut.seq);
      const int64_t before = __shfl_sync(~0u, end, at) - static_cast<int64_t>(cut.chunks + kTaskWeight) * p.hv;
      const int64_t inside = x - base - before;
      cut.head = static_cast<int>(inside / (cut.chunks + kTaskWeight));
      cut.chunk = static_cast<int>(inside % (cut.chunks + kTaskWeight)) - kTaskWeight;
      if (cut.chunk < kMinPiece) {
        cut.chunk = 0;
      } else if (cut.chunk > cut.chunks - kMinPiece) {
        cut.chunk = 0;
        if (++cut.head == p.hv) cut.head = 0, ++cut.seq;
      }
      return cut;
    }
    base += __shfl_sync(~0u, end, 31);
  }
  return {sequences, 0, 0, 0};
}

__device__ __forceinline__ Cell* CellOf(const DeltaParams& p, int j) {
  return reinterpret_cast<Cell*>(p.workspace) + j;
}
__device__ __forceinline__ bool SameTask(const Cut& a, const Cut& b) { return a.seq == b.seq && a.head == b.head; }

/// Chunks from boundary `a` to the next cut `b` or the end of the sequence.
__device__ __forceinline__ int ChunksBehind(const Cut& a, const Cut& b) {
  return (SameTask(a, b) ? b.chunk : a.chunks) - a.chunk;
}

/// Tokens from chunk `chunk` of the sequence over `chunks` chunks.
__device__ __forceinline__ void SetTokens(const DeltaParams& p, Piece* piece, int chunk, int chunks) {
  const int64_t begin = p.offsets[piece->seq], length = p.offsets[piece->seq + 1] - begin;
  piece->token = static_cast<int>(begin) + chunk * kChunk;
  piece->rows =
      static_cast<int>(min(static_cast<int64_t>(chunks) * kChunk, length - static_cast<int64_t>(chunk) * kChunk));
  piece->end = piece->first + chunks;
}

/// Kernels with one piece per CTA: that piece.
__device__ __forceinline__ void SetOnePiece(const DeltaParams& p, PieceTable* table, int seq, int head, int chunk,
                                            int chunks, int flags) {
  Piece& piece = table->piece[0];
  piece.seq = seq;
  piece.head = head;
  piece.first = 0;
  piece.own = chunks;
  piece.flags = flags;
  SetTokens(p, &piece, chunk, chunks);
  table->pieces = 1;
}

/// Fills the table for a round (0, 1, ... while `more`); one warp. No pieces: this CTA has nothing to do.
template <Mode kMode>
__device__ __forceinline__ void MakePieces(const DeltaParams& p, PieceTable* table, int round, int lane) {
  if (lane == 0) {
    table->pieces = 0;
    table->more = false;
  }
  __syncwarp();
  if constexpr (kMode == Mode::kWhole) {
    const int index = blockIdx.x / p.hv;
    if (index >= p.header->sequences || lane != 0) return;
    const int seq = p.order[index];
    SetOnePiece(p, table, seq, blockIdx.x % p.hv, 0, ChunksOf(p, seq), kEndsSequence);
    return;
  }
  const int j = Part();
  Boundary* const at = static_cast<Boundary*>(p.boundaries);
  if constexpr (kMode == Mode::kTransfer || kMode == Mode::kReplay) {
    const int task = at[j].task, last = at[j].last;
    if (task == 0) return;
    bool failed = *p.failures != 0;
    if (failed) {
      failed = false;
      for (int i = j; i >= 0 && at[i].task == task; --i) failed |= at[i].failed != 0;
    }
    if (kMode == Mode::kTransfer && (!failed || last != 0)) return;
    if (kMode == Mode::kReplay && !failed) {
      // Nothing to mend; a final state is still to be copied.
      if (last == 0 || lane != 0) return;
      Piece& piece = table->piece[0];
      piece = {0, 0, 0, 0, (task - 1) % p.hv, (task - 1) / p.hv, 0, kEndsSequence};
      table->pieces = 1;
      return;
    }
  }
  const int64_t total = TotalWeight(p, lane);
  const int parts = Parts(total, gridDim.x);
  if (j >= parts) return;
  const Cut from = FindCut(p, total, parts, j, lane), to = FindCut(p, total, parts, j + 1, lane);
  const Cut next = FindCut(p, total, parts, j + 2, lane);
  if (lane != 0) return;
  if constexpr (kMode != Mode::kBalanced) {
    SetOnePiece(p, table, from.seq, from.head, from.chunk, ChunksBehind(from, to),
                kFromZero | (SameTask(from, to) ? kCut : kEndsSequence));
    return;
  }
  if (round == 0 && from.chunk > 0) {
    at[j].task = 1 + from.seq * p.hv + from.head;
    at[j].last = !SameTask(from, to);
  }
  Cut c = round == 0 ? from : table->resume;
  int first = 0, n = 0;
  while (c.seq < to.seq || c.head < to.head || c.chunk < to.chunk) {
    if (n == kMaxPieces) {
      table->more = true;
      table->resume = c;
      break;
    }
    Piece& piece = table->piece[n++];
    const bool cut = SameTask(c, to);
    piece.seq = c.seq;
    piece.head = c.head;
    piece.first = first;
    piece.own = (cut ? to.chunk : ChunksOf(p, c.seq)) - c.chunk;
    piece.flags = (c.chunk > 0 ? kFromZero : 0) | (cut ? kCut : kEndsSequence);
    int over = 0;
    if (cut) {
      table->next_own = ChunksBehind(to, next);
      over = min(table->next_own, SavePoint(kSaves - 1));
    }
    SetTokens(p, &piece, c.chunk, piece.own + over);
    first = piece.end;
    if (cut) break;
    c.chunk = 0;
    if (++c.head == p.hv) c.head = 0, ++c.seq;
  }
  table->pieces = n;
}

/// One chunk of the CTA, as the factor teams need it.
struct ChunkAt {
  int piece, token, valid, head;
};
/// Chunk `g` of the CTA, which lies in `piece` or behind it.
__device__ __forceinline__ ChunkAt FindChunk(const PieceTable& table, int g, int piece) {
  while (g >= table.piece[piece].end) ++piece;
  const int4 a = *reinterpret_cast<const int4*>(&table.piece[piece]);
  const int local = (g - a.x) * kChunk;
  return {piece, a.z + local, min(kChunk, a.w - local), table.piece[piece].head};
}

}  // namespace fluvial::sm90::chunk16
