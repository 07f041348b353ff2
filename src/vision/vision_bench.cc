// SPDX-License-Identifier: Apache-2.0
// Preparing a photograph: resize and patches of 12 megapixels.
#include <benchmark/benchmark.h>

#include "vision/processor.h"
#include "vision/testkit.h"

namespace fluvial::vision {
namespace {

const Image& Photograph() {
  static const Image image = testing::Picture(4000, 3000, 1);
  return image;
}

void Resize(benchmark::State& state) {
  const Size size{state.range(0), state.range(1)};
  for (auto _ : state) benchmark::DoNotOptimize(ResizeBicubic(Photograph(), size));
  state.SetItemsProcessed(state.iterations() * 12'000'000);
}
BENCHMARK(Resize)->Args({1008, 1344})->Args({3008, 4000})->Unit(benchmark::kMillisecond);

/// Resize, normalisation, patch order and hash, at the bounds of Qwen3-VL's files.
void Process(benchmark::State& state) {
  ProcessorConfig config;
  config.image = {65536, state.range(0)};
  const Processor processor(config);
  for (auto _ : state) benchmark::DoNotOptimize(processor.Process(Photograph()));
  state.SetItemsProcessed(state.iterations() * 12'000'000);
}
BENCHMARK(Process)->Arg(1'400'000)->Arg(16'777'216)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fluvial::vision
