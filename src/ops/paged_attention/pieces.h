// SPDX-License-Identifier: Apache-2.0
// Internal to this room: the cpu body over any pieces of sequences, with page tables that need not come from a plan.
// Latent attention runs on it: chunks of tokens, expanded keys in one big page, selected keys as pages of one row.
#pragma once

#include <cstdint>
#include <span>

#include "base/arena.h"
#include "ops/paged_attention/paged_attention.h"

namespace fluvial::ops::paged_attention::internal {

/// `length` consecutive queries, rows token .. token+length-1 of q and out; query i sees keys 0..context+i of `pages`.
struct Piece {
  int64_t token = 0;
  int64_t length = 0;
  int64_t context = 0;
  const int32_t* pages = nullptr;
};

/// Bytes for any pieces of at most p.tokens queries, p.sequences pieces, p.max_length queries and p.max_kv_length keys
/// of one piece.
size_t PiecesWorkspace(const Problem& p, const DeviceInfo& device);

/// Attention of `pieces`; args.plan is not used, p.page_size may be any positive number. A row's bits depend neither on
/// its company nor on how its sequence is cut into pieces.
Status RunPieces(Stream& stream, const Problem& p, const Args& args, std::span<const Piece> pieces, Arena& arena);

}  // namespace fluvial::ops::paged_attention::internal
