// SPDX-License-Identifier: Apache-2.0
// Test kit of models: golden files, altered copies of a checkpoint, and a bench that runs any mix of chunks through a
// model with scrambled pages and slots and NaN in everything that was not written.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "models/model.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"

namespace fluvial::models::testing {

/// Tensors of a golden.safetensors.
class Golden {
 public:
  explicit Golden(const std::string& path) {
    auto file = weights::SafetensorsFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status().message();
    if (file.ok()) file_ = std::move(file).value();
    for (const auto& e : file_.entries()) by_name_[e.name] = &e;
  }

  bool Has(const std::string& name) const { return by_name_.contains(name); }

  std::vector<int32_t> Ints(const std::string& name) const { return Read<int32_t>(name); }
  std::vector<float> Floats(const std::string& name) const { return Read<float>(name); }

 private:
  template <class T>
  std::vector<T> Read(const std::string& name) const {
    const auto it = by_name_.find(name);
    EXPECT_NE(it, by_name_.end()) << name;
    if (it == by_name_.end()) return {};
    EXPECT_EQ(it->second->dtype, DTypeOf<T>::value) << name;
    std::vector<T> out((it->second->end - it->second->begin) / sizeof(T));
    std::memcpy(out.data(), file_.Data(*it->second), out.size() * sizeof(T));
    return out;
  }

  weights::SafetensorsFile file_;
  std::map<std::string, const weights::TensorEntry*> by_name_;
};

inline std::string GoldenDirectory(const std::string& name) {
  return std::string(FLUVIAL_SOURCE_DIR) + "/tests/golden/" + name;
}

/// One tensor of a checkpoint that is being rewritten.
struct RawTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};

/// A copy of a checkpoint with other tensors, all in one file; removed at the end of its scope.
class AlteredCheckpoint {
 public:
  using Change = std::function<void(std::vector<RawTensor>&)>;

  AlteredCheckpoint(const std::string& directory, const Change& change) {
    namespace fs = std::filesystem;
    static int count = 0;
    path_ =
        fs::temp_directory_path() / ("fluvial_altered_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    fs::remove_all(path_);
    fs::create_directories(path_);
    fs::copy(directory + "/config.json", path_);
    const auto checkpoint = weights::Checkpoint::Open(directory);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    if (!checkpoint.ok()) return;
    std::vector<RawTensor> tensors;
    for (const auto& t : checkpoint->tensors()) {
      const auto* data = reinterpret_cast<const char*>(checkpoint->Data(t));
      tensors.push_back({t.entry.name, t.entry.dtype, t.entry.shape, std::string(data, t.entry.end - t.entry.begin)});
    }
    change(tensors);
    Write(tensors);
  }
  AlteredCheckpoint(const AlteredCheckpoint&) = delete;
  AlteredCheckpoint& operator=(const AlteredCheckpoint&) = delete;
  ~AlteredCheckpoint() { std::filesystem::remove_all(path_); }

  std::string path() const { return path_.string(); }

  /// Replaces `from` in config.json, which must have it.
  void Configure(const std::string& from, const std::string& to) {
    std::ifstream in(path_ / "config.json");
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    if (at == std::string::npos) return;
    std::ofstream(path_ / "config.json") << text.replace(at, from.size(), to);
  }

 private:
  void Write(const std::vector<RawTensor>& tensors) {
    std::string header = "{", data;
    for (const RawTensor& t : tensors) {
      std::string shape;
      for (const int64_t d : t.shape) shape += (shape.empty() ? "" : ",") + std::to_string(d);
      const char* dtype = t.dtype == DType::kF32 ? "F32" : t.dtype == DType::kBF16 ? "BF16" : "F16";
      header += (header.size() > 1 ? "," : "") +
                ("\"" + t.name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape) + "],\"data_offsets\":[" +
                std::to_string(data.size()) + "," + std::to_string(data.size() + t.bytes.size()) + "]}";
      data += t.bytes;
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::ofstream out(path_ / "model.safetensors", std::ios::binary);
    const uint64_t size = header.size();
    out.write(reinterpret_cast<const char*>(&size), sizeof(size));
    out << header << data;
  }

  std::filesystem::path path_;
};

/// A Change that zeroes every tensor whose name contains `part`, and counts them.
inline AlteredCheckpoint::Change Zeroed(const std::string& part, int* changed) {
  return [part, changed](std::vector<RawTensor>& tensors) {
    *changed = 0;
    for (RawTensor& t : tensors) {
      if (t.name.find(part) == std::string::npos) continue;
      ++*changed;
      std::fill(t.bytes.begin(), t.bytes.end(), '\0');
    }
  };
}

/// Runs chunks of sequences. Sequence numbers index slots and page tables; pages and slots are dealt in a fixed
/// scrambled order.
class Bench {
 public:
  static constexpr int32_t kPage = 16;
  static constexpr int32_t kSequences = 8;
  static constexpr int32_t kPagesEach = 160;

  Bench(const std::string& directory, const LoadOptions& options = {}, int threads = 1) {
    stream_ = MakeCpuStream(threads);
    auto model = LoadModel(directory, options, *stream_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    if (!model.ok()) return;
    model_ = std::move(model).value();
    const CacheSpec& spec = model_->cache_spec();
    for (const LayerCacheSpec& l : spec.layers) {
      LayerCache c;
      if (l.linear()) {
        c.conv = Poisoned(spec.conv, {kSequences + 1, l.conv_width - 1, l.conv_channels});
        c.recurrent = Poisoned(spec.recurrent, {kSequences + 1, l.value_heads, l.v, l.k});
      } else {
        c.k_pages = Poisoned(spec.kv, {kSequences * kPagesEach, l.kv_heads, kPage, l.d_qk});
        if (l.d_v > 0) c.v_pages = Poisoned(spec.kv, {kSequences * kPagesEach, l.kv_heads, kPage, l.d_v});
      }
      caches_.push_back(c);
    }
  }

  bool ok() const { return model_ != nullptr; }
  Model& model() { return *model_; }
  int64_t vocab() const { return model_->vocab(); }
  static int32_t Slot(int sequence) { return 1 + (sequence * 5 + 3) % kSequences; }

  /// Gives a sequence its pictures, before its first chunk: encodes them, all in one call, and keeps the features.
  /// `ids` is the whole prompt.
  Status SetVision(int sequence, const std::vector<int32_t>& ids, const std::vector<VisionInput>& items) {
    Vision& v = vision_[sequence];
    FLUVIAL_ASSIGN_OR_RETURN(v.plan, PlanVision(*model_->vision(), ids, items));
    int64_t tokens = 0;
    for (const VisionInput& item : items) {
      v.first.push_back(tokens);
      tokens += model_->vision()->Tokens(item);
    }
    const DType io = model_->dtype();
    const int64_t levels = model_->vision_levels(), width = model_->vision_width();
    v.features = Poisoned(io, {levels, tokens, width});
    FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, model_->EncodeBytes(items));
    FLUVIAL_ASSIGN_OR_RETURN(const Buffer workspace, Buffer::Allocate(DeviceKind::kCpu, bytes));
    std::memset(workspace.data(), 0xff, bytes);
    Arena arena(workspace.data(), bytes);
    return model_->Encode(*stream_, items, v.features, arena);
  }

  /// Features of a sequence's pictures as fp32 [levels, tokens, H].
  std::vector<float> Features(int sequence) {
    const TensorView& f = vision_[sequence].features;
    std::vector<float> out(static_cast<size_t>(f.elements()));
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<float>(LoadAsDouble(f.data, f.dtype, static_cast<int64_t>(i)));
    }
    return out;
  }
  const VisionPlan& Plan(int sequence) { return vision_[sequence].plan; }

  struct Chunk {
    int sequence = 0;
    std::vector<int32_t> ids;
  };

  /// One step; chunks of one token after the first go as decode rows when `decode`. Returns the logits of every row of
  /// every chunk, in the order of `chunks`.
  std::vector<std::vector<float>> Run(std::vector<Chunk> chunks, bool decode = true,
                                      const HiddenObserver* observer = nullptr) {
    const auto is_decode = [&](const Chunk& c) { return decode && c.ids.size() == 1 && done_[c.sequence] > 0; };
    std::vector<size_t> order;
    for (const bool pass : {true, false}) {
      for (size_t i = 0; i < chunks.size(); ++i) {
        if (is_decode(chunks[i]) == pass) order.push_back(i);
      }
    }
    ops::SequenceSpec parts[2];
    ops::paged_attention::KvSpec kv;
    std::vector<int32_t> ids, rows;
    std::vector<int64_t> axes[3];
    std::vector<VisionRows> pictures;
    bool plain = true;
    for (const size_t i : order) {
      const Chunk& c = chunks[i];
      int64_t& done = done_[c.sequence];
      ops::SequenceSpec& spec = parts[is_decode(c) ? 0 : 1];
      spec.lengths.push_back(static_cast<int64_t>(c.ids.size()));
      spec.read_slots.push_back(done == 0 ? -1 : Slot(c.sequence));
      spec.write_slots.push_back(Slot(c.sequence));
      kv.lengths.push_back(static_cast<int64_t>(c.ids.size()));
      kv.contexts.push_back(done);
      std::vector<int32_t> pages;
      for (int32_t p = 0; p < kPagesEach; ++p) {
        pages.push_back((c.sequence + p * kSequences) * 7 % (kSequences * kPagesEach));
      }
      kv.pages.push_back(pages);
      const auto vision = vision_.find(c.sequence);
      if (vision != vision_.end()) {
        plain = false;
        AddPictures(vision->second, done, static_cast<int64_t>(c.ids.size()), static_cast<int64_t>(ids.size()),
                    pictures);
      }
      for (size_t t = 0; t < c.ids.size(); ++t) {
        const int64_t at = done + static_cast<int64_t>(t);
        rows.push_back(static_cast<int32_t>(ids.size()));
        ids.push_back(c.ids[t]);
        for (int64_t axis = 0; axis < 3; ++axis) {
          axes[axis].push_back(vision == vision_.end() ? at : Place(vision->second.plan, axis, at));
        }
      }
    }
    std::optional<ops::SequencePlan> plans[2];
    for (int i = 0; i < 2; ++i) {
      if (parts[i].lengths.empty()) continue;
      auto plan = ops::SequencePlan::Make(*stream_, parts[i]);
      EXPECT_TRUE(plan.ok()) << plan.status().message();
      plans[i] = std::move(plan).value();
    }
    auto kv_plan = ops::paged_attention::KvPlan::Make(*stream_, kPage, kv);
    EXPECT_TRUE(kv_plan.ok()) << kv_plan.status().message();

    const int64_t tokens = static_cast<int64_t>(ids.size());
    std::vector<int64_t> positions = axes[0];
    for (int axis = 1; !plain && axis < 3; ++axis) {
      positions.insert(positions.end(), axes[axis].begin(), axes[axis].end());
    }
    std::vector<float> logits(ids.size() * static_cast<size_t>(vocab()), std::nanf(""));
    Step step;
    step.ids = TensorView(ids.data(), DType::kI32, {tokens});
    step.positions = TensorView(positions.data(), DType::kI64, {plain ? 1 : 3, tokens});
    step.vision = pictures.empty() ? nullptr : &pictures;
    step.decode = plans[0] ? &*plans[0] : nullptr;
    step.prefill = plans[1] ? &*plans[1] : nullptr;
    step.kv = &*kv_plan;
    step.caches = &caches_;
    step.logit_rows = TensorView(rows.data(), DType::kI32, {tokens});
    step.logits = TensorView(logits.data(), DType::kF32, {tokens, vocab()});
    step.observer = observer;
    auto bytes = model_->WorkspaceBytes(step);
    EXPECT_TRUE(bytes.ok()) << bytes.status().message();
    if (!bytes.ok()) return {};
    // Exactly what was asked for, and NaN in it.
    auto workspace = Buffer::Allocate(DeviceKind::kCpu, *bytes);
    EXPECT_TRUE(workspace.ok());
    std::memset(workspace->data(), 0xff, *bytes);
    Arena arena(workspace->data(), *bytes);
    const Status status = model_->Forward(*stream_, step, arena);
    EXPECT_TRUE(status.ok()) << status.message();

    std::vector<std::vector<float>> out(chunks.size());
    size_t row = 0;
    for (const size_t i : order) {
      const size_t n = chunks[i].ids.size() * static_cast<size_t>(vocab());
      out[i].assign(logits.begin() + static_cast<std::ptrdiff_t>(row),
                    logits.begin() + static_cast<std::ptrdiff_t>(row + n));
      row += n;
      done_[chunks[i].sequence] += static_cast<int64_t>(chunks[i].ids.size());
    }
    return out;
  }

  /// Forgets a sequence; its pages and slot keep their contents.
  void Reset(int sequence) {
    done_[sequence] = 0;
    vision_.erase(sequence);
  }

  /// Prompt in pieces that end at `cuts` (and at its end); logits of all rows.
  std::vector<float> Prompt(int sequence, const std::vector<int32_t>& ids, std::vector<int64_t> cuts = {},
                            bool decode = true) {
    cuts.push_back(static_cast<int64_t>(ids.size()));
    std::vector<float> out;
    int64_t at = 0;
    for (const int64_t cut : cuts) {
      const auto piece = Run({{sequence, {ids.begin() + at, ids.begin() + cut}}}, decode);
      if (piece.empty()) return {};
      out.insert(out.end(), piece[0].begin(), piece[0].end());
      at = cut;
    }
    return out;
  }

  /// State of a layer of a sequence as fp32: conv [W-1, C] or recurrent [Hv, V, K].
  std::vector<float> State(int layer, int sequence, bool conv) {
    const LayerCache& c = caches_[static_cast<size_t>(layer)];
    const TensorView& v = conv ? c.conv : c.recurrent;
    std::vector<float> out(static_cast<size_t>(v.stride(0)));
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] =
          static_cast<float>(LoadAsDouble(v.data, v.dtype, Slot(sequence) * v.stride(0) + static_cast<int64_t>(i)));
    }
    return out;
  }

 private:
  struct Vision {
    VisionPlan plan;
    TensorView features;         // [levels, tokens, H]
    std::vector<int64_t> first;  // token of each item
  };

  static int64_t Place(const VisionPlan& plan, int64_t axis, int64_t at) {
    const int64_t n = static_cast<int64_t>(plan.positions.size()) / 3;
    return at < n ? plan.positions[static_cast<size_t>(axis * n + at)] : at + plan.delta;
  }

  /// Views of the features that tokens begin..begin+count-1 take; they lie at `row` of the step.
  static void AddPictures(const Vision& v, int64_t begin, int64_t count, int64_t row, std::vector<VisionRows>& out) {
    for (const VisionPlan::Run& run : v.plan.runs) {
      const int64_t from = std::max(begin, run.begin), to = std::min(begin + count, run.begin + run.count);
      if (from >= to) continue;
      TensorView f = v.features;
      f.dims[1] = to - from;
      const int64_t first = v.first[run.item] + run.first + from - run.begin;
      f.data = static_cast<char*>(f.data) + first * f.stride(1) * static_cast<int64_t>(SizeOf(f.dtype));
      out.push_back({row + from - begin, f});
    }
  }

  TensorView Poisoned(DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view(nullptr, dtype, shape);
    const size_t bytes = static_cast<size_t>(view.elements()) * SizeOf(dtype);
    auto buffer = Buffer::Allocate(DeviceKind::kCpu, bytes);
    EXPECT_TRUE(buffer.ok());
    std::memset(buffer->data(), 0xff, bytes);
    view.data = buffer->data();
    buffers_.push_back(std::move(buffer).value());
    return view;
  }

  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Model> model_;
  std::vector<Buffer> buffers_;
  std::vector<LayerCache> caches_;
  std::map<int, int64_t> done_;
  std::map<int, Vision> vision_;
};

/// Largest |a - b|; infinity when sizes differ or anything is NaN.
inline double MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::fabs(static_cast<double>(a[i]) - b[i]);
    if (!(d <= std::numeric_limits<double>::max())) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, d);
  }
  return worst;
}

inline std::vector<float> Row(const std::vector<float>& logits, int64_t row, int64_t vocab) {
  return {logits.begin() + row * vocab, logits.begin() + (row + 1) * vocab};
}

inline int32_t Argmax(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace fluvial::models::testing
