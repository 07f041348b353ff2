// SPDX-License-Identifier: Apache-2.0
// The only file that sees oneDNN (2.x and 3.x). Primitives are created on first use of a shape and kept: creation may
// compile code and takes milliseconds, so a server warms its shapes up.
//
// oneDNN of Debian runs on OpenMP threads of its own. They are capped to the stream's thread count; our workers go to
// sleep about 20 us after their last task, but OpenMP's keep spinning after theirs (OMP_WAIT_POLICY=passive stops
// that).
#include <omp.h>
#include <dnnl.hpp>

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/hash.h"
#include "ops/gemm/backends.h"

namespace fluvial::ops::gemm {
namespace {

using dnnl::matmul;
using dnnl::memory;

dnnl::engine& Engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::data_type TypeOf(DType t) {
  switch (t) {
    case DType::kBF16:
      return memory::data_type::bf16;
    case DType::kF16:
      return memory::data_type::f16;
    default:
      return memory::data_type::f32;
  }
}

// A problem and the row pitches that its primitive was made for.
struct Key {
  Problem p;
  int64_t xs = 0, ws = 0, ys = 0;
  uint64_t packed = 0;  // PackedOneDnn::id: an address could come back with another layout
  friend bool operator==(const Key&, const Key&) = default;
};
struct HashOf {
  size_t operator()(const Key& k) const {
    return Hasher()
        .Add(k.p.Hash())
        .Add(static_cast<uint64_t>(k.xs))
        .Add(static_cast<uint64_t>(k.ws))
        .Add(static_cast<uint64_t>(k.ys))
        .Add(k.packed)
        .Get();
  }
};

matmul::primitive_desc MakeDescriptor(const Key& k, const memory::desc& weights) {
  const Problem& p = k.p;
  const memory::desc x({p.m, p.k}, TypeOf(p.x), memory::dims{k.xs, 1});
  const memory::desc y({p.m, p.n}, TypeOf(p.y), memory::dims{k.ys, 1});
  const memory::desc bias = p.has_bias ? memory::desc({1, p.n}, TypeOf(p.bias), memory::dims{p.n, 1}) : memory::desc();
#if DNNL_VERSION_MAJOR >= 3
  return matmul::primitive_desc(Engine(), x, weights, bias, y);
#else
  return matmul::primitive_desc(p.has_bias ? matmul::desc(x, weights, bias, y) : matmul::desc(x, weights, y), Engine());
#endif
}

memory::desc PlainWeights(const Problem& p, int64_t pitch) {
  return memory::desc({p.k, p.n}, TypeOf(p.w), memory::dims{1, pitch});
}
memory::desc AnyWeights(const Problem& p) { return memory::desc({p.k, p.n}, TypeOf(p.w), memory::format_tag::any); }

class PackedOneDnn : public PackedWeight {
 public:
  PackedOneDnn(memory::desc desc, DType dtype, int64_t n, int64_t k)
      : memory_(desc, Engine()), desc_(desc), dtype_(dtype), n_(n), k_(k) {
    static std::atomic<uint64_t> next{1};
    id_ = next.fetch_add(1);
  }
  std::string_view backend() const override { return "onednn"; }
  size_t bytes() const override { return desc_.get_size(); }
  DType dtype() const override { return dtype_; }
  int64_t n() const override { return n_; }
  int64_t k() const override { return k_; }
  /// Never 0, never reused.
  uint64_t id() const { return id_; }
  const memory::desc& desc() const { return desc_; }
  const memory& data() const { return memory_; }

 private:
  memory memory_;
  memory::desc desc_;
  DType dtype_;
  int64_t n_, k_;
  uint64_t id_ = 0;
};

// Primitives by key. A primitive may run in several threads at once (oneDNN's contract), the map may not.
class Cache {
 public:
  matmul Get(const Key& key, const memory::desc& weights) {
    std::lock_guard lock(mutex_);
    if (const auto it = map_.find(key); it != map_.end()) return it->second;
    matmul primitive(MakeDescriptor(key, weights));
    if (map_.size() >= kMax) map_.clear();
    map_.emplace(key, primitive);
    return primitive;
  }

 private:
  static constexpr size_t kMax = 1024;
  std::mutex mutex_;
  std::unordered_map<Key, matmul, HashOf> map_;
};
Cache& Primitives() {
  static Cache cache;
  return cache;
}

// Answers of the probe by types.
struct Probed {
  std::mutex mutex;
  std::unordered_map<Key, std::string, HashOf> reasons;
};

// Empty, or why oneDNN cannot take these types on this CPU. Asked once per combination with a small shape: making a
// primitive for every number of rows that a server meets would cost more than the products.
std::string Probe(const Problem& real) {
  static Probed probed;
  Problem p = real;
  p.m = 16, p.n = 64, p.k = 64;
  const Key key{p, p.k, p.k, p.n, 0};
  std::lock_guard lock(probed.mutex);
  if (const auto it = probed.reasons.find(key); it != probed.reasons.end()) return it->second;
  const std::string types = "x=" + std::string(Name(p.x)) + " w=" + std::string(Name(p.w)) +
                            " y=" + std::string(Name(p.y)) + (p.has_bias ? " bias=" + std::string(Name(p.bias)) : "");
  std::string reason;
  try {
    const auto pd = MakeDescriptor(key, p.packed ? AnyWeights(p) : PlainWeights(p, p.k));
    const std::string name = pd.impl_info_str();
    if (name.rfind("ref", 0) == 0) {
      reason = "oneDNN has only its reference loop (" + name + ") for " + types + " on this CPU";
    }
  } catch (const std::exception& e) {
    reason = "oneDNN cannot create a matmul for " + types + " on this CPU: " + e.what();
  }
  probed.reasons.emplace(key, reason);
  return reason;
}

Check CheckOneDnn(const Problem& p, const DeviceInfo& device) {
  if (Check c = CheckCpu(device); !c.ok()) return c;
  if (device.assumed) return Check::Refuse("needs this machine's CPU to ask oneDNN, the device is assumed");
  if (p.m == 0 || p.n == 0 || p.k == 0) {
    return Check::Refuse("takes no empty dimension, got m=" + std::to_string(p.m) + " n=" + std::to_string(p.n) +
                         " k=" + std::to_string(p.k));
  }
  if (std::string reason = Probe(p); !reason.empty()) return Check::Refuse(std::move(reason));
  return Check::Accept();
}

size_t NoWorkspace(const Problem&, const DeviceInfo&) { return 0; }  // oneDNN keeps scratch of its own

double Cost(const Problem& p, const DeviceInfo& d) {
  return CostUs(p.w == DType::kF32 ? CostClass::kOneDnnFp32 : CostClass::kOneDnnBf16, p, d);
}

Status RunOneDnn(Stream& stream, const Problem& p, const Args& a, Workspace) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  if (p.m == 0 || p.n == 0) return Status::Ok();
  if (p.k == 0) return Status::InvalidArgument("gemm: onednn takes no k=0: use cpu");
  if (p.packed && a.packed->backend() != "onednn") {
    return Status::InvalidArgument("gemm: the packed weight was made by " + std::string(a.packed->backend()) +
                                   ", not by onednn");
  }
  try {
    const int threads = stream.pool().threads();
    if (omp_get_max_threads() != threads) omp_set_num_threads(threads);
    const auto* packed = static_cast<const PackedOneDnn*>(a.packed);
    // The pitch of a single row says nothing; oneDNN still checks it.
    Key key{p, p.m > 1 ? a.x.stride(0) : p.k, p.n > 1 && !p.packed ? a.w.stride(0) : p.k, p.m > 1 ? a.y.stride(0) : p.n,
            packed != nullptr ? packed->id() : 0};
    const memory::desc weights = packed != nullptr ? packed->desc() : PlainWeights(p, key.ws);
    const matmul primitive = Primitives().Get(key, weights);
    const memory x({{p.m, p.k}, TypeOf(p.x), memory::dims{key.xs, 1}}, Engine(), a.x.data);
    const memory y({{p.m, p.n}, TypeOf(p.y), memory::dims{key.ys, 1}}, Engine(), a.y.data);
    std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, x},
        {DNNL_ARG_WEIGHTS, packed != nullptr ? packed->data() : memory(weights, Engine(), a.w.data)},
        {DNNL_ARG_DST, y}};
    if (p.has_bias) {
      arguments.emplace(DNNL_ARG_BIAS, memory({{1, p.n}, TypeOf(p.bias), memory::dims{p.n, 1}}, Engine(), a.bias.data));
    }
    dnnl::stream s(Engine());
    primitive.execute(s, arguments);
    s.wait();
  } catch (const std::exception& e) {
    return Status::Failed("gemm: oneDNN failed on '" + p.ToString() + "': " + e.what());
  }
  return Status::Ok();
}

}  // namespace

const GemmBackend& OneDnnBackend() {
  static constexpr GemmBackend backend = {
      "onednn", "oneDNN matmul, weights in place or packed", CheckOneDnn, NoWorkspace, Cost, RunOneDnn};
  return backend;
}

Result<std::shared_ptr<const PackedWeight>> OneDnnPack(const TensorView& w, DType x, DType y, int64_t typical_m) {
  Problem p;
  p.m = typical_m, p.n = w.dim(0), p.k = w.dim(1);
  p.x = x, p.w = w.dtype, p.y = y;
  p.packed = true;
  if (std::string reason = Probe(p); !reason.empty()) return Status::Refused("packed weights: " + reason);
  try {
    const auto pd = MakeDescriptor({p, p.k, p.k, p.n, 0}, AnyWeights(p));
    auto packed = std::make_shared<PackedOneDnn>(pd.weights_desc(), p.w, p.n, p.k);
    const memory plain(PlainWeights(p, p.n > 1 ? w.stride(0) : p.k), Engine(), w.data);
    dnnl::stream s(Engine());
    dnnl::reorder(plain, packed->data()).execute(s, const_cast<memory&>(plain), const_cast<memory&>(packed->data()));
    s.wait();
    return std::shared_ptr<const PackedWeight>(std::move(packed));
  } catch (const std::exception& e) {
    return Status::Failed("packed weights: oneDNN failed on '" + p.ToString() + "': " + e.what());
  }
}

}  // namespace fluvial::ops::gemm
