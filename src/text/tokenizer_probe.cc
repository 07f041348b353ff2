// SPDX-License-Identifier: Apache-2.0
// Encodes texts for tools/golden/compare_tokenizer.py: one text a line on standard input, in hexadecimal; for each
// one line with its ids and its decoded text, in hexadecimal again.
#include <cstdio>
#include <iostream>
#include <string>

#include "text/tokenizer.h"

namespace {

std::string FromHex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenizer_probe DIRECTORY < TEXTS_IN_HEX\n");
    return 2;
  }
  const auto tokenizer = fluvial::text::Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
    return 3;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const auto ids = tokenizer->Encode(FromHex(line));
    if (!ids.ok()) {
      std::fprintf(stderr, "%s\n", ids.status().message().c_str());
      return 1;
    }
    for (const auto id : *ids) std::printf("%d ", id);
    std::printf("|");
    for (const unsigned char c : tokenizer->Decode(*ids)) std::printf("%02x", c);
    std::printf("\n");
  }
  return 0;
}
