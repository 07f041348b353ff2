// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include <algorithm>
#include <numeric>

#include "text/unicode.h"
#include "text/utf8.h"

namespace fluvial::text {
namespace {

size_t SkipSpacesBack(std::string_view text, size_t end, size_t stop) {
  while (end > stop) {
    const char32_t c = DecodeValidBefore(text, end);
    if (!IsWhiteSpace(c)) break;
    do {
      --end;
    } while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  }
  return end;
}

size_t SkipSpaces(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t next = begin;
    if (!IsWhiteSpace(DecodeValid(text, &next))) break;
    begin = next;
  }
  return begin;
}

bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && IsWordCharacter(DecodeValidBefore(text, begin))) return true;
  return end < text.size() && IsWordCharacter(DecodeValid(text, &end));
}

}  // namespace

void AddedTokenMatcher::Build(const std::vector<const AddedToken*>& tokens, const std::vector<std::string>& patterns) {
  nodes_.clear();
  edges_.clear();
  first_.fill(false);
  std::vector<size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t i) { return patterns[i].empty(); });
  if (order.empty()) return;
  // Sorted patterns with a common prefix are neighbours, so a node is a range of them at some depth. Ranges are
  // expanded breadth first, which makes the edges of a node contiguous.
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return patterns[a] != patterns[b] ? patterns[a] < patterns[b] : a < b; });
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, order.size(), 0}};
  nodes_.emplace_back();
  for (size_t n = 0; n < ranges.size(); ++n) {
    auto [begin, end, depth] = ranges[n];
    for (; begin < end && patterns[order[begin]].size() == depth; ++begin) nodes_[n].token = tokens[order[begin]];
    nodes_[n].first_edge = static_cast<uint32_t>(edges_.size());
    while (begin < end) {
      const char c = patterns[order[begin]][depth];
      size_t stop = begin + 1;
      while (stop < end && patterns[order[stop]][depth] == c) ++stop;
      edges_.push_back({static_cast<unsigned char>(c), static_cast<uint32_t>(nodes_.size())});
      if (n == 0) first_[static_cast<unsigned char>(c)] = true;
      nodes_.emplace_back();
      ranges.push_back({begin, stop, depth + 1});
      ++nodes_[n].edges;
      begin = stop;
    }
  }
}

const AddedToken* AddedTokenMatcher::Longest(std::string_view text, size_t begin, size_t* end) const {
  const AddedToken* best = nullptr;
  uint32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const Edge* edge = edges_.data() + nodes_[node].first_edge;
    const Edge* stop = edge + nodes_[node].edges;
    while (edge != stop && edge->byte != static_cast<unsigned char>(text[i])) ++edge;
    if (edge == stop) break;
    node = edge->node;
    if (nodes_[node].token != nullptr) {
      best = nodes_[node].token;
      *end = i + 1;
    }
  }
  return best;
}

void AddedTokenMatcher::Split(std::string_view text, bool parse_special, std::vector<Part>* parts) const {
  parts->clear();
  size_t done = 0;
  for (size_t i = 0; !nodes_.empty() && i < text.size();) {
    if (!first_[static_cast<unsigned char>(text[i])]) {
      ++i;
      continue;
    }
    size_t end = 0;
    const AddedToken* token = Longest(text, i, &end);
    if (token == nullptr) {
      ++i;
      continue;
    }
    size_t begin = i;
    // The search goes on behind the match even when it is rejected, or when rstrip takes more.
    i = end;
    if (token->special && !parse_special) continue;
    if (token->single_word && TouchesWord(text, begin, end)) continue;
    if (token->lstrip) begin = SkipSpacesBack(text, begin, std::min(done, begin));
    if (token->rstrip) end = SkipSpaces(text, end);
    if (done < begin) parts->push_back({done, begin, nullptr});
    parts->push_back({begin, end, token});
    done = std::max(done, end);
  }
  if (done < text.size()) parts->push_back({done, text.size(), nullptr});
}

}  // namespace fluvial::text
