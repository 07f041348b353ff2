// SPDX-License-Identifier: Apache-2.0
// Speed of the tokenizer on a model and a text of the user's: load, encode, decode on one thread, in processor time
// (a shared machine disturbs that less than wall time), best of several.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>

#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace {

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

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: tokenizer_benchmark DIRECTORY TEXT_FILE [REPEATS]\n");
    return 2;
  }
  const int repeats = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
  auto tokenizer = Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
    return 3;
  }
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};

  const double load = BestSeconds(repeats, [&] { (void)Tokenizer::Load(argv[1]).ok(); });
  std::vector<fluvial::text::TokenId> ids;
  const double encode = BestSeconds(repeats, [&] {
    auto result = tokenizer->Encode(text);
    if (result.ok()) ids = std::move(result).value();
  });
  std::string decoded;
  const double decode = BestSeconds(repeats, [&] { decoded = tokenizer->Decode(ids, {.skip_special_tokens = false}); });
  size_t streamed = 0;
  const double stream = BestSeconds(repeats, [&] {
    fluvial::text::StreamDecoder decoder(*tokenizer);
    streamed = 0;
    for (const auto id : ids) streamed += decoder.Push(id).size();
  });
  const double mb = static_cast<double>(text.size()) * 1e-6, tokens = static_cast<double>(ids.size());
  std::printf(
      "load %.0f ms; %.2f MB, %.0f tokens; encode %.1f MB/s (%.1f M tokens/s); decode %.0f MB/s; stream %.0f "
      "ns/token%s\n",
      load * 1e3, mb, tokens, mb / encode, tokens * 1e-6 / encode, mb / decode, stream * 1e9 / tokens,
      decoded == text ? "" : "; decoded text differs (normalisation?)");
  return 0;
}
