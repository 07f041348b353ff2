// SPDX-License-Identifier: Apache-2.0
#include "vision/resize.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/check.h"

namespace fluvial::vision {
namespace {

constexpr double kMaxRatio = 200;
constexpr int kPillowBits = 22;  // 32 - 8 bits of pixel - 2 for overshoot

Status BadSides(int64_t height, int64_t width) {
  return Status::InvalidArgument("the picture is " + std::to_string(width) + " x " + std::to_string(height) +
                                 ": one side may be at most 200 times the other, crop or pad it");
}

/// Python's round() of n / factor, times factor.
double RoundTo(double n, int64_t factor) {
  return std::nearbyint(n / static_cast<double>(factor)) * static_cast<double>(factor);
}

/// Sides brought into the bounds; `volume` = pixels before, `rounded` = pixels after rounding.
Size Bound(double height, double width, double volume, double rounded, double h_bar, double w_bar, int64_t factor,
           const PixelBounds& bounds) {
  const double f = static_cast<double>(factor);
  if (rounded > static_cast<double>(bounds.max)) {
    const double beta = std::sqrt(volume / static_cast<double>(bounds.max));
    h_bar = std::max(f, std::floor(height / beta / f) * f);
    w_bar = std::max(f, std::floor(width / beta / f) * f);
  } else if (rounded < static_cast<double>(bounds.min)) {
    const double beta = std::sqrt(static_cast<double>(bounds.min) / volume);
    h_bar = std::ceil(height * beta / f) * f;
    w_bar = std::ceil(width * beta / f) * f;
  }
  // A side shorter than half the factor rounds to 0 when the other side alone satisfies the bounds; transformers then
  // fails. One block is the nearest usable size.
  return {static_cast<int64_t>(std::max(h_bar, f)), static_cast<int64_t>(std::max(w_bar, f))};
}

double Cubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

/// Of one axis: output j is the sum of weights[j * stride + i] * input[begin[j] + i] for i < count[j].
struct Weights {
  int64_t stride = 0;
  int bits = kPillowBits;
  std::vector<int64_t> begin, count;
  std::vector<int32_t> weights;  // fixed point
};

/// torch: as many bits as keep the largest weight in 16 bits.
int TorchBits(double largest) {
  int bits = 0;
  while (bits < kPillowBits && static_cast<int>(0.5 + largest * (1 << (bits + 1))) < (1 << 15)) ++bits;
  return bits;
}

Weights MakeWeights(int64_t in, int64_t out, Kernel kernel) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double filter_scale = std::max(scale, 1.0);
  const double support = 2.0 * filter_scale;
  Weights w;
  w.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  w.begin.resize(static_cast<size_t>(out));
  w.count.resize(static_cast<size_t>(out));
  w.weights.resize(static_cast<size_t>(out * w.stride));
  std::vector<double> real(w.weights.size());
  double largest = 0;
  for (int64_t j = 0; j < out; ++j) {
    const double center = (static_cast<double>(j) + 0.5) * scale;
    const int64_t low = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const int64_t high = std::min(in, static_cast<int64_t>(center + support + 0.5));
    const double inverse = 1.0 / filter_scale;
    double* row = real.data() + j * w.stride;
    double sum = 0;
    for (int64_t i = 0; i < high - low; ++i) {
      row[i] = Cubic((static_cast<double>(i + low) - center + 0.5) * inverse);
      sum += row[i];
    }
    for (int64_t i = 0; i < high - low; ++i) {
      if (sum != 0) row[i] /= sum;
      largest = std::max(largest, row[i]);
    }
    w.begin[static_cast<size_t>(j)] = low;
    w.count[static_cast<size_t>(j)] = high - low;
  }
  if (kernel == Kernel::kTorch) w.bits = TorchBits(largest);
  for (size_t i = 0; i < real.size(); ++i) {
    const double fixed = real[i] * (1 << w.bits);
    w.weights[i] = static_cast<int32_t>(fixed < 0 ? fixed - 0.5 : fixed + 0.5);
  }
  return w;
}

uint8_t Narrow(int32_t sum, int bits) { return static_cast<uint8_t>(std::clamp(sum >> bits, 0, 255)); }

Image ResizeColumns(const Image& image, int64_t width, Kernel kernel) {
  const Weights w = MakeWeights(image.width, width, kernel);
  Image out{width, image.height, {}};
  out.rgb.resize(static_cast<size_t>(3 * width * image.height));
  uint8_t* to = out.rgb.data();
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* row = image.rgb.data() + 3 * y * image.width;
    for (int64_t x = 0; x < width; ++x, to += 3) {
      const uint8_t* from = row + 3 * w.begin[static_cast<size_t>(x)];
      const int32_t* k = w.weights.data() + x * w.stride;
      int32_t r = 1 << (w.bits - 1), g = r, b = r;
      for (int64_t i = 0; i < w.count[static_cast<size_t>(x)]; ++i) {
        r += from[3 * i] * k[i];
        g += from[3 * i + 1] * k[i];
        b += from[3 * i + 2] * k[i];
      }
      to[0] = Narrow(r, w.bits);
      to[1] = Narrow(g, w.bits);
      to[2] = Narrow(b, w.bits);
    }
  }
  return out;
}

Image ResizeRows(const Image& image, int64_t height, Kernel kernel) {
  const Weights w = MakeWeights(image.height, height, kernel);
  Image out{image.width, height, {}};
  const size_t pitch = static_cast<size_t>(3 * image.width);
  out.rgb.resize(pitch * static_cast<size_t>(height));
  std::vector<int32_t> sums(pitch);
  for (int64_t y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), 1 << (w.bits - 1));
    for (int64_t i = 0; i < w.count[static_cast<size_t>(y)]; ++i) {
      const uint8_t* row = image.rgb.data() + static_cast<size_t>(w.begin[static_cast<size_t>(y)] + i) * pitch;
      const int32_t k = w.weights[static_cast<size_t>(y * w.stride + i)];
      for (size_t x = 0; x < pitch; ++x) sums[x] += row[x] * k;
    }
    uint8_t* to = out.rgb.data() + static_cast<size_t>(y) * pitch;
    for (size_t x = 0; x < pitch; ++x) to[x] = Narrow(sums[x], w.bits);
  }
  return out;
}

}  // namespace

Result<Size> ImageSize(int64_t height, int64_t width, int64_t factor, const PixelBounds& bounds) {
  if (height < 1 || width < 1) return Status::InvalidArgument("the picture has no pixels");
  const double h = static_cast<double>(height), w = static_cast<double>(width);
  if (std::max(h, w) / std::min(h, w) > kMaxRatio) return BadSides(height, width);
  const double h_bar = RoundTo(h, factor), w_bar = RoundTo(w, factor);
  return Bound(h, w, h * w, h_bar * w_bar, h_bar, w_bar, factor, bounds);
}

Result<Size> VideoSize(int64_t frames, int64_t height, int64_t width, int64_t temporal, int64_t factor,
                       const PixelBounds& bounds) {
  if (height < 1 || width < 1) return Status::InvalidArgument("the frames have no pixels");
  if (frames < temporal) {
    return Status::InvalidArgument("the video has " + std::to_string(frames) + " frames: at least " +
                                   std::to_string(temporal) + " are needed");
  }
  double h = static_cast<double>(height), w = static_cast<double>(width);
  const double f = static_cast<double>(factor), t = static_cast<double>(frames);
  if (h < f || w < f) {
    const double scale = std::max(f / h, f / w);
    h = std::trunc(h * scale);
    w = std::trunc(w * scale);
  }
  if (std::max(h, w) / std::min(h, w) > kMaxRatio) return BadSides(height, width);
  const double h_bar = RoundTo(h, factor), w_bar = RoundTo(w, factor), t_bar = RoundTo(t, temporal);
  return Bound(h, w, t * h * w, t_bar * h_bar * w_bar, h_bar, w_bar, factor, bounds);
}

Image ResizeBicubic(const Image& image, Size size, Kernel kernel) {
  FLUVIAL_CHECK(image.width > 0 && image.height > 0 && size.width > 0 && size.height > 0);
  if (size.width == image.width && size.height == image.height) return image;
  if (size.width == image.width) return ResizeRows(image, size.height, kernel);
  if (size.height == image.height) return ResizeColumns(image, size.width, kernel);
  const int64_t rows_lost = image.height - size.height, columns_lost = image.width - size.width;
  // As Pillow 13 decides.
  const bool rows_first = kernel == Kernel::kPillow && rows_lost > 0 && rows_lost > 2 * columns_lost;
  return rows_first ? ResizeColumns(ResizeRows(image, size.height, kernel), size.width, kernel)
                    : ResizeRows(ResizeColumns(image, size.width, kernel), size.height, kernel);
}

}  // namespace fluvial::vision
