// SPDX-License-Identifier: Apache-2.0
// Files made with torch (testdata/make_torch.py): our reading of where the models round.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "ops/causal_conv1d/causal_conv1d.h"

namespace fluvial::ops::causal_conv1d {
namespace {

struct Stored {
  std::vector<char> data;
  TensorView view;
};

/// Lines "name rows columns bits...", with the dtype of each name given by the caller.
std::map<std::string, Stored> Load(const std::string& file, const std::map<std::string, DType>& types) {
  std::map<std::string, Stored> out;
  std::ifstream in(std::string(FLUVIAL_SOURCE_DIR) + "/src/ops/causal_conv1d/testdata/" + file);
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t rows = 0, columns = 0;
    words >> name >> rows >> columns;
    const DType type = types.at(name);
    Stored& s = out[name];
    s.data.resize(static_cast<size_t>(rows * columns) * SizeOf(type));
    for (int64_t i = 0; i < rows * columns; ++i) {
      uint32_t bits = 0;
      words >> bits;
      std::memcpy(s.data.data() + i * SizeOf(type), &bits, SizeOf(type));  // little-endian
    }
    EXPECT_FALSE(words.fail()) << file << " " << name;
    s.view = TensorView(s.data.data(), type, {rows, columns});
  }
  EXPECT_EQ(out.size(), types.size()) << file;
  return out;
}

struct Form {
  const char* file;
  DType io, weight;
  Rounding rounding;
};

TEST(CausalConv1dTorch, MatchesTheModelsTorchPaths) {
  for (const Form& form : {Form{"torch_gdn_bf16.txt", DType::kBF16, DType::kBF16, Rounding::kEager},
                           Form{"torch_kda_bf16.txt", DType::kBF16, DType::kF32, Rounding::kOnce},
                           Form{"torch_gdn_fp32.txt", DType::kF32, DType::kF32, Rounding::kOnce}}) {
    auto stored = Load(form.file, {{"x", form.io}, {"weight", form.weight}, {"out", form.io}});
    auto stream = MakeCpuStream(1);
    const int64_t t = stored["x"].view.dims[0], c = stored["x"].view.dims[1];
    auto plan = SequencePlan::Make(*stream, {{t}, {-1}, {-1}});
    ASSERT_TRUE(plan.ok());
    Problem p;
    p.channels = static_cast<int32_t>(c);
    p.io = p.state = form.io;
    p.weight = form.weight;
    p.rounding = form.rounding;
    SetLengths(p, std::vector<int64_t>{t});
    for (const ConvBackend& backend : Backends()) {
      std::vector<char> out(stored["out"].data.size(), static_cast<char>(0xff));
      Args a;
      a.x = stored["x"].view;
      a.weight = stored["weight"].view;
      a.out = TensorView(out.data(), p.io, {t, c});
      a.plan = &*plan;
      ASSERT_TRUE(Validate(p, a).ok()) << Validate(p, a).message();
      ASSERT_TRUE(backend.run(*stream, p, a, {}).ok());
      // Both sides compute in fp32 (here fp64) before each rounding, so only values next to a rounding tie may differ,
      // by one unit in the last place; more than a few of them would mean another cadence.
      int64_t different = 0;
      for (int64_t i = 0; i < t * c; ++i) {
        const double got = LoadAsDouble(out.data(), p.io, i), want = LoadAsDouble(stored["out"].data.data(), p.io, i);
        const double ulp = p.io == DType::kF32 ? 0x1p-21 : 0x1p-7;
        ASSERT_LE(std::abs(got - want), ulp * std::abs(want) + 1e-7) << form.file << " " << backend.name << " " << i;
        different += got != want;
      }
      if (p.io == DType::kBF16) {
        EXPECT_LE(different, t * c / 100) << form.file << " " << backend.name;
      }
    }
  }
}

}  // namespace
}  // namespace fluvial::ops::causal_conv1d
