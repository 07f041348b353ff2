// SPDX-License-Identifier: Apache-2.0
// The cuDNN adapter: attention graphs through cudnn-frontend, the library opened at run time. The only file that sees
// either. Facts about graphs, offsets and versions: docs/ops/vision_attention.md.
#include "ops/vision_attention/cudnn.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

// cudnn-frontend looks every cuDNN function up through this handle.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace fluvial::ops::vision_attention {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

Status Failed(const std::string& what, const std::string& why) {
  return Status::Failed(std::string(kOpName) + ": cudnn: " + what + ": " + why);
}

CudnnLibrary Load() {
  CudnnLibrary library;
  const char* name = std::getenv("FLUVIAL_CUDNN_LIBRARY");
  const std::string wanted = name != nullptr && *name != '\0' ? name : "libcudnn.so.9";
  void* handle = dlopen(wanted.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr && name == nullptr)
    handle = dlopen("/usr/local/cuda/lib64/libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.reason = wanted + " cannot be opened: install cuDNN " + CudnnVersionText(kOldestCudnn) +
                     " or newer, or name the file in FLUVIAL_CUDNN_LIBRARY";
    return library;
  }
  cudnn_frontend::cudnn_dlhandle = handle;
  // cudnn-frontend opens a CUDA runtime of its own, and complains on stderr where it finds two: name ours.
  std::string runtime = "libcudart.so." + std::to_string(CUDART_VERSION / 1000);
  if (const std::string toolkit = "/usr/local/cuda/lib64/" + runtime;
      dlopen(runtime.c_str(), RTLD_NOW) == nullptr && dlopen(toolkit.c_str(), RTLD_NOW) != nullptr) {
    runtime = toolkit;
  }
  setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", runtime.c_str(), 0);
  library.version = static_cast<int64_t>(fe::detail::get_backend_version());
  if (library.version < kOldestCudnn) {
    library.reason = "needs cuDNN " + CudnnVersionText(kOldestCudnn) + " or newer, " + wanted + " is " +
                     CudnnVersionText(library.version);
  }
  return library;
}

/// What a graph is made for; nothing else may differ between two calls that share one.
using Key = std::array<int64_t, 32>;

struct Entry {
  std::shared_ptr<fe::graph::Graph> graph;
  int64_t workspace = 0;
};

enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kSeqQ, kSeqKv, kOffsetQ, kOffsetK, kOffsetV, kOffsetO, kOffsetStats };

/// Graphs and handles of the process. Handles are never destroyed: streams of the engine live as long.
class Cache {
 public:
  static Cache& Get() {
    static Cache& cache = *new Cache;
    return cache;
  }

  std::shared_ptr<const Entry> Find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto it = graphs_.find(key);
    if (it == graphs_.end()) return nullptr;
    order_.splice(order_.begin(), order_, it->second.second);
    ++stats_.hits;
    return it->second.first;
  }

  void Add(const Key& key, std::shared_ptr<const Entry> entry, double seconds) {
    const std::lock_guard lock(mutex_);
    ++stats_.built;
    stats_.build_seconds += seconds;
    if (graphs_.contains(key)) return;
    order_.push_front(key);
    graphs_.emplace(key, std::pair{std::move(entry), order_.begin()});
    // Images of ever new sizes must not fill the memory with graphs.
    if (graphs_.size() > kMost) {
      graphs_.erase(order_.back());
      order_.pop_back();
    }
  }

  /// Null with `create` false and none there.
  Result<cudnnHandle_t> Handle(int device, cudaStream_t stream, bool create) {
    const std::lock_guard lock(mutex_);
    cudnnHandle_t& handle = handles_[{device, stream}];
    if (handle == nullptr && create) {
      if (fe::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS) {
        handle = nullptr;
        return Failed("creating a handle", "cudnnCreate refused");
      }
      if (fe::detail::set_stream(handle, stream) != CUDNN_STATUS_SUCCESS) {
        return Failed("setting the stream", "cudnnSetStream refused");
      }
    }
    return handle;
  }

  CudnnPlanStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  static constexpr size_t kMost = 256;
  std::mutex mutex_;
  std::list<Key> order_;  // most recently used first
  std::map<Key, std::pair<std::shared_ptr<const Entry>, std::list<Key>::iterator>> graphs_;
  std::map<std::pair<int, cudaStream_t>, cudnnHandle_t> handles_;
  CudnnPlanStats stats_;
};

/// One call in cuDNN's terms.
struct Call {
  const Problem& p;
  const Args& a;
  const RaggedPlan& plan;

  RowStrides Strides(const TensorView& t) const { return StridesOf(p, t); }
  /// Elements from one sequence of the declared batch to the next.
  int64_t BatchStride(const RowStrides& s) const { return p.padded != 0 ? s.sequence : s.token * plan.max_length(); }

  Key MakeKey(int device) const {
    Key key{};
    size_t at = 0;
    auto add = [&](int64_t x) { key[at++] = x; };
    for (const int64_t x :
         {int64_t{device}, int64_t(p.io), int64_t(plan.offset_type()), int64_t{plan.rules().token_units},
          int64_t{plan.dense()}, plan.batch(), plan.max_length(), int64_t{p.heads}, int64_t{p.d},
          int64_t{std::bit_cast<int32_t>(p.scale)}, int64_t{p.lse}, static_cast<int64_t>(CudnnWorkspaceLimit(p))}) {
      add(x);
    }
    for (const TensorView* t : {&a.q, &a.k, &a.v, &a.out}) {
      const RowStrides s = Strides(*t);
      for (const int64_t x : {BatchStride(s), s.token, s.head}) add(x);
    }
    if (p.lse) {
      const RowStrides s = LseStridesOf(p, a.lse);
      for (const int64_t x : {BatchStride(s), s.token, s.head}) add(x);
    }
    return key;
  }
};

fe::DataType_t TypeOf(DType t) {
  switch (t) {
    case DType::kBF16:
      return fe::DataType_t::BFLOAT16;
    case DType::kF16:
      return fe::DataType_t::HALF;
    case DType::kI32:
      return fe::DataType_t::INT32;
    case DType::kI64:
      return fe::DataType_t::INT64;
    default:
      return fe::DataType_t::FLOAT;
  }
}

Tensor Vector(fe::graph::Graph& graph, const char* name, Uid uid, int64_t n, DType type) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_name(name)
                          .set_uid(uid)
                          .set_dim({n, 1, 1, 1})
                          .set_stride({1, 1, 1, 1})
                          .set_data_type(TypeOf(type)));
}

Result<std::shared_ptr<const Entry>> Build(const Call& c, cudnnHandle_t handle) {
  const Problem& p = c.p;
  const RaggedPlan& plan = c.plan;
  const int64_t b = plan.batch(), h = p.heads, s = plan.max_length(), d = p.d;
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(TypeOf(p.io))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  auto offsets = [&](const char* name, Uid uid) { return Vector(*graph, name, uid, b + 1, plan.offset_type()); };
  auto describe = [&](fe::graph::Tensor_attributes& t, const RowStrides& strides, int64_t width, const char* name,
                      Uid uid, Section section) {
    t.set_dim({b, h, s, width}).set_stride({c.BatchStride(strides), strides.head, strides.token, 1});
    if (plan.dense()) return;
    t.set_ragged_offset(offsets(name, uid));
    if (plan.rules().token_units) t.set_ragged_offset_multiplier(plan.Multiplier(section));
  };
  auto input = [&](const char* name, Uid uid, const TensorView& view, const char* offset_name, Uid offset_uid,
                   Section section) {
    fe::graph::Tensor_attributes t;
    t.set_name(name).set_uid(uid);
    describe(t, c.Strides(view), d, offset_name, offset_uid, section);
    return graph->tensor(t);
  };
  const Tensor q = input("q", kQ, c.a.q, "offset_q", kOffsetQ, Section::kQ);
  const Tensor k = input("k", kK, c.a.k, "offset_k", kOffsetK, Section::kK);
  const Tensor v = input("v", kV, c.a.v, "offset_v", kOffsetV, Section::kV);
  auto options = fe::graph::SDPA_attributes().set_name("vision").set_generate_stats(p.lse).set_attn_scale(p.scale);
  if (!plan.dense()) {
    options.set_padding_mask(true)
        .set_seq_len_q(Vector(*graph, "lengths_q", kSeqQ, b, DType::kI32))
        .set_seq_len_kv(Vector(*graph, "lengths_kv", kSeqKv, b, DType::kI32));
  }
  auto [out, stats] = graph->sdpa(q, k, v, options);
  out->set_output(true).set_uid(kO);
  describe(*out, c.Strides(c.a.out), d, "offset_out", kOffsetO, Section::kOut);
  if (p.lse) {
    stats->set_output(true).set_uid(kStats).set_data_type(fe::DataType_t::FLOAT);
    describe(*stats, LseStridesOf(p, c.a.lse), 1, "offset_stats", kOffsetStats, Section::kLse);
  }
  const auto limit = static_cast<int64_t>(CudnnWorkspaceLimit(p));
  auto step = [&](const std::string& what, fe::error_t e) {
    return e.is_good() ? Status::Ok() : Failed(what, e.get_message() + " (" + p.ToString() + ")");
  };
  FLUVIAL_RETURN_IF_ERROR(step("the graph", graph->validate()));
  FLUVIAL_RETURN_IF_ERROR(step("the graph", graph->build_operation_graph(handle)));
  FLUVIAL_RETURN_IF_ERROR(step("its plans", graph->create_execution_plans({fe::HeurMode_t::A})));
  graph->deselect_workspace_greater_than(limit);
  FLUVIAL_RETURN_IF_ERROR(step("support", graph->check_support()));
  FLUVIAL_RETURN_IF_ERROR(
      step("building a plan within " + std::to_string(limit) + " bytes of workspace", graph->build_plans()));
  auto entry = std::make_shared<Entry>();
  FLUVIAL_RETURN_IF_ERROR(step("its workspace", graph->get_workspace_size(entry->workspace)));
  entry->graph = std::move(graph);
  return std::shared_ptr<const Entry>(std::move(entry));
}

Status Run(Stream& stream, const Problem& p, const Args& a, Workspace workspace) {
  if (!Cudnn().reason.empty()) return Status::Refused(std::string(kOpName) + ": cudnn: " + Cudnn().reason);
  auto bad = [](const std::string& what) { return Status::InvalidArgument(std::string(kOpName) + ": cudnn: " + what); };
  if (a.ragged == nullptr) return bad("args have no ragged plan: build a RaggedPlan, once per image batch");
  const RaggedPlan& plan = *a.ragged;
  if (plan.strides() != TokenStridesOf(p, a)) return bad("the ragged plan was made for other token strides");
  if (plan.tokens() != a.plan->tokens()) {
    return bad("the ragged plan has " + std::to_string(plan.tokens()) + " tokens, the sequence plan " +
               std::to_string(a.plan->tokens()) + ": refill both");
  }
  const bool capturing = stream.capturing();
  if (capturing && !plan.bounded()) return bad("a captured call needs a ragged plan with bounds (RaggedPlan::Create)");
  if (plan.tokens() == 0 && !capturing) return Status::Ok();

  const int device = stream.device().index;
  if (cudaSetDevice(device) != cudaSuccess) return Failed("selecting the GPU", "cudaSetDevice refused");
  const auto native = static_cast<cudaStream_t>(stream.native());
  FLUVIAL_ASSIGN_OR_RETURN(cudnnHandle_t handle, Cache::Get().Handle(device, native, !capturing));
  const Call call{p, a, plan};
  const Key key = call.MakeKey(device);
  std::shared_ptr<const Entry> entry = Cache::Get().Find(key);
  if (capturing && (handle == nullptr || entry == nullptr)) {
    return bad("this problem has no graph on this stream yet, and the stream is being captured: run it once before");
  }
  if (entry == nullptr) {
    const auto start = std::chrono::steady_clock::now();
    FLUVIAL_ASSIGN_OR_RETURN(entry, Build(call, handle));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    Cache::Get().Add(key, entry, seconds.count());
  }
  if (static_cast<size_t>(entry->workspace) > workspace.bytes) {
    return Status::Resource(std::string(kOpName) + ": cudnn: workspace too small: " + std::to_string(entry->workspace) +
                            " bytes needed, " + std::to_string(workspace.bytes) + " available");
  }
  auto pointer = [](const void* x) { return const_cast<void*>(x); };
  std::unordered_map<int64_t, void*> pack = {{kQ, a.q.data}, {kK, a.k.data}, {kV, a.v.data}, {kO, a.out.data}};
  if (p.lse) pack[kStats] = a.lse.data;
  if (!plan.dense()) {
    pack[kSeqQ] = pack[kSeqKv] = pointer(plan.device_lengths());
    pack[kOffsetQ] = pointer(plan.device_offsets(Section::kQ));
    pack[kOffsetK] = pointer(plan.device_offsets(Section::kK));
    pack[kOffsetV] = pointer(plan.device_offsets(Section::kV));
    pack[kOffsetO] = pointer(plan.device_offsets(Section::kOut));
    if (p.lse) pack[kOffsetStats] = pointer(plan.device_offsets(Section::kLse));
  }
  fe::error_t e = entry->graph->execute(handle, pack, workspace.data);
  return e.is_good() ? Status::Ok() : Failed("running", e.get_message());
}

}  // namespace

const CudnnLibrary& Cudnn() {
  static const CudnnLibrary library = [] {
    try {
      return Load();
    } catch (const std::exception& e) {
      return CudnnLibrary{0, std::string("cuDNN cannot be used: ") + e.what()};
    }
  }();
  return library;
}

RaggedRules CudnnRules() {
  // A feature must be known to the headers and to the library.
  return RaggedRules::For(std::min<int64_t>(Cudnn().version, CUDNN_VERSION), CUDNN_FRONTEND_VERSION);
}

CudnnPlanStats GetCudnnPlanStats() { return Cache::Get().stats(); }

Status LaunchCudnn(Stream& stream, const Problem& problem, const Args& args, Workspace workspace) {
  try {
    return Run(stream, problem, args, workspace);
  } catch (const std::exception& e) {
    return Failed("it threw", e.what());
  }
}

}  // namespace fluvial::ops::vision_attention
