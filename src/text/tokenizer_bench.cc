// SPDX-License-Identifier: Apache-2.0
// tokenizer_bench DIRECTORY TEXT_FILE [REPEATS]: speed of loading, encoding and decoding on one thread, in processor
// time (a shared machine disturbs that less than wall time), best of several.
// tokenizer_bench DIRECTORY --hex: encodes texts for tools/golden/compare_tokenizer.py, one a line on standard input
// in hexadecimal; for each one line with its ids and its decoded text, in hexadecimal again.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace {

using fluvial::text::StreamDecoder;
using fluvial::text::TokenId;
using fluvial::text::Tokenizer;

template <class F>
double BestSeconds(int repeats, const F& f) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const std::clock_t start = std::clock();
    f();
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return best;
}

int Measure(const char* directory, const Tokenizer& tokenizer, const char* path, int repeats) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!tokenizer.Encode(text).ok() || text.empty()) {
    std::fprintf(stderr, "%s is empty or cannot be encoded\n", path);
    return 1;
  }
  const double load = BestSeconds(repeats, [&] { (void)Tokenizer::Load(directory).ok(); });
  std::vector<TokenId> ids;
  const double encode = BestSeconds(repeats, [&] { ids = *tokenizer.Encode(text); });
  std::string decoded;
  const double decode = BestSeconds(repeats, [&] { decoded = tokenizer.Decode(ids, {.skip_special_tokens = false}); });
  std::string streamed;
  const double stream = BestSeconds(repeats, [&] {
    StreamDecoder decoder(tokenizer, {.skip_special_tokens = false});
    streamed.clear();
    for (const TokenId id : ids) streamed += decoder.Push(id);
    streamed += decoder.Finish();
  });
  const double mb = static_cast<double>(text.size()) * 1e-6, tokens = static_cast<double>(ids.size());
  std::printf(
      "load %.0f ms; %.2f MB, %.0f tokens; encode %.1f MB/s, %.1f M tokens/s; decode %.0f MB/s; stream %.0f ns/token\n",
      load * 1e3, mb, tokens, mb / encode, tokens * 1e-6 / encode, mb / decode, stream * 1e9 / tokens);
  return streamed == decoded ? 0 : 1;
}

int Compare(const Tokenizer& tokenizer) {
  for (std::string line; std::getline(std::cin, line);) {
    std::string text;
    for (size_t i = 0; i + 1 < line.size(); i += 2) {
      text += static_cast<char>(std::strtol(line.substr(i, 2).c_str(), nullptr, 16));
    }
    const auto ids = tokenizer.Encode(text);
    if (!ids.ok()) {
      std::fprintf(stderr, "%s\n", ids.status().message().c_str());
      return 1;
    }
    for (const TokenId id : *ids) std::printf("%d ", id);
    std::printf("|");
    for (const unsigned char c : tokenizer.Decode(*ids)) std::printf("%02x", c);
    std::printf("\n");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: tokenizer_bench DIRECTORY {TEXT_FILE [REPEATS] | --hex}\n");
    return 2;
  }
  const auto tokenizer = Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
    return 3;
  }
  if (std::string_view(argv[2]) == "--hex") return Compare(*tokenizer);
  return Measure(argv[1], *tokenizer, argv[2], argc > 3 ? std::max(1, std::atoi(argv[3])) : 5);
}
