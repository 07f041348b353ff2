// SPDX-License-Identifier: Apache-2.0
// The adapter between fluvial_delta_backend and DeltaBackend: conversions, the dynamic loader, trampolines.
#include "ops/delta_rule/provider.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "fluvial/provider.h"
#include "ops/delta_rule/backends.h"

namespace fluvial::ops::delta_rule {
namespace {

// A backend's functions are plain pointers without a context, so each provided backend gets functions of its own.
constexpr int kMaxProvided = 32;

struct Provided {
  const fluvial_delta_backend* backend = nullptr;
  std::string name;  ///< of messages: "flashinfer" or "flashinfer of provider x"
  std::string description;
};
std::array<Provided, kMaxProvided> provided;
int provided_count = 0;

int32_t DTypeOf(DType t) {
  switch (t) {
    case DType::kF32:
      return FLUVIAL_FP32;
    case DType::kBF16:
      return FLUVIAL_BF16;
    case DType::kF16:
      return FLUVIAL_FP16;
    default:
      return FLUVIAL_I32;
  }
}

fluvial_device Convert(const DeviceInfo& d) {
  fluvial_device out{};
  out.kind = d.kind == DeviceKind::kCuda ? FLUVIAL_CUDA : FLUVIAL_CPU;
  out.index = d.index;
  out.sm_major = d.sm_major;
  out.sm_minor = d.sm_minor;
  out.multiprocessors = d.multiprocessors;
  out.assumed = d.assumed ? 1 : 0;
  out.memory_bytes = d.memory_bytes;
  return out;
}

static_assert(static_cast<int>(Op::kKdaDecode) == FLUVIAL_KDA_DECODE);
static_assert(static_cast<int>(GateForm::kBounded) == FLUVIAL_GATE_BOUNDED);
static_assert(static_cast<int>(BetaForm::kTwoSigmoid) == FLUVIAL_BETA_TWO_SIGMOID);
static_assert(static_cast<int>(NormForm::kL2Max) == FLUVIAL_NORM_L2_MAX);

fluvial_delta_problem Convert(const Problem& p) {
  fluvial_delta_problem out{};
  out.op = static_cast<int32_t>(p.op);
  out.hk = p.hk, out.hv = p.hv, out.k = p.k, out.v = p.v;
  out.io = DTypeOf(p.io), out.gate_dtype = DTypeOf(p.gate_dtype), out.beta_dtype = DTypeOf(p.beta_dtype);
  out.state = DTypeOf(p.state);
  out.gate = static_cast<int32_t>(p.gate);
  out.beta = static_cast<int32_t>(p.beta);
  out.norm = static_cast<int32_t>(p.norm);
  out.has_a_log = p.has_a_log ? 1 : 0;
  out.has_dt_bias = p.has_dt_bias ? 1 : 0;
  out.sequences = p.sequences;
  out.checkpoint_every = p.checkpoint_every;
  out.token_states = p.token_states ? 1 : 0;
  out.alignment = p.alignment;
  out.lower_bound = p.lower_bound, out.norm_eps = p.norm_eps, out.scale = p.scale;
  out.tokens = p.tokens, out.max_length = p.max_length;
  return out;
}

static_assert(TensorView::kMaxRank == 5, "fluvial_tensor has five dims");

fluvial_tensor Convert(const TensorView& t) {
  fluvial_tensor out{};
  out.data = t.data;
  out.dtype = DTypeOf(t.dtype);
  out.rank = t.rank;
  std::copy(t.dims.begin(), t.dims.end(), out.dims);
  std::copy(t.strides.begin(), t.strides.end(), out.strides);
  return out;
}

fluvial_plan Convert(const SequencePlan& plan) {
  fluvial_plan out{};
  out.id = plan.id(), out.generation = plan.generation();
  out.tokens = plan.tokens(), out.max_length = plan.max_length();
  out.sequences = plan.sequences(), out.max_sequences = plan.bounds().max_sequences;
  out.offsets = plan.offsets().data();
  out.read_slots = plan.read_slots().data();
  out.write_slots = plan.write_slots().data();
  out.order = plan.order().data();
  out.device_offsets = plan.device_offsets();
  out.device_read_slots = plan.device_read_slots();
  out.device_write_slots = plan.device_write_slots();
  out.device_order = plan.device_order();
  return out;
}

fluvial_delta_args Convert(const Args& a) {
  return {Convert(a.q),     Convert(a.k),           Convert(a.v),           Convert(a.gate),
          Convert(a.beta),  Convert(a.a_log),       Convert(a.dt_bias),     Convert(a.out),
          Convert(a.state), Convert(a.checkpoints), Convert(a.token_slots), Convert(*a.plan)};
}

void ParallelFor(const fluvial_stream* stream, int64_t tasks, void (*body)(void*, int64_t, int32_t), void* context) {
  static_cast<ThreadPool*>(stream->host)->ParallelFor(tasks, [&](int64_t task, int worker) {
    body(context, task, worker);
  });
}

/// What a provider wrote; it may have written nothing, or no end.
struct Message {
  char text[512] = {};
  std::string Get(const char* fallback) {
    text[sizeof(text) - 1] = 0;
    return text[0] == 0 ? fallback : text;
  }
};

Check CheckProvided(int i, const Problem& problem, const DeviceInfo& device) {
  const fluvial_delta_backend& b = *provided[i].backend;
  const auto p = Convert(problem);
  const auto d = Convert(device);
  Message reason;
  if (b.check(b.context, &p, &d, reason.text, sizeof(reason.text)) == 0) return Check::Accept();
  return Check::Refuse(reason.Get("its provider gives no reason"));
}

size_t WorkspaceProvided(int i, const Problem& problem, const DeviceInfo& device) {
  const fluvial_delta_backend& b = *provided[i].backend;
  const auto p = Convert(problem);
  const auto d = Convert(device);
  return b.workspace_bytes(b.context, &p, &d);
}

double CostProvided(int i, const Problem& problem, const DeviceInfo& device) {
  const fluvial_delta_backend& b = *provided[i].backend;
  const auto p = Convert(problem);
  const auto d = Convert(device);
  const double us = b.cost_us(b.context, &p, &d);
  return us >= 0 ? us : INFINITY;  // also for NaN: such a backend is never cheapest
}

Status RunProvided(int i, Stream& stream, const Problem& problem, const Args& args, Workspace workspace) {
  const fluvial_delta_backend& b = *provided[i].backend;
  const auto p = Convert(problem);
  const auto a = Convert(args);
  fluvial_stream s{};
  s.device = Convert(stream.device());
  s.native = stream.native();
  s.capturing = stream.capturing() ? 1 : 0;
  s.threads = stream.pool().threads();
  s.parallel_for = ParallelFor;
  s.host = &stream.pool();
  Message error;
  if (b.run(b.context, &s, &p, &a, workspace.data, workspace.bytes, error.text, sizeof(error.text)) == 0) {
    return Status::Ok();
  }
  return Status::Failed(std::string(Name(problem.op)) + " " + provided[i].name + ": " +
                        error.Get("failed without saying why"));
}

template <int kIndex>
DeltaBackend Trampoline() {
  return {
      .name = {},
      .description = {},
      .check = [](const Problem& p, const DeviceInfo& d) { return CheckProvided(kIndex, p, d); },
      .workspace_bytes = [](const Problem& p, const DeviceInfo& d) { return WorkspaceProvided(kIndex, p, d); },
      .cost_us = [](const Problem& p, const DeviceInfo& d) { return CostProvided(kIndex, p, d); },
      .run = [](Stream& s, const Problem& p, const Args& a, Workspace w) { return RunProvided(kIndex, s, p, a, w); }};
}

template <int... kIndices>
DeltaBackend Trampolines(int i, std::integer_sequence<int, kIndices...>) {
  static const DeltaBackend all[] = {Trampoline<kIndices>()...};
  return all[i];
}

bool GoodName(const char* name) {
  if (name == nullptr || *name == 0) return false;
  for (const char* c = name; *c != 0; ++c) {
    if (std::islower(static_cast<unsigned char>(*c)) == 0 && std::isdigit(static_cast<unsigned char>(*c)) == 0 &&
        *c != '_') {
      return false;
    }
  }
  return std::string_view(name) != "auto";
}

std::vector<LoadedProvider>& Loaded() {
  static std::vector<LoadedProvider> loaded;
  return loaded;
}

/// What a provider says of itself, and whether that can be.
Status CheckProvider(const std::string& where, const fluvial_provider* p) {
  if (p == nullptr) return Status::UnusableModel(where + " gave nothing: its own log may say why");
  if (p->interface_version != FLUVIAL_PROVIDER_INTERFACE) {
    return Status::UnusableModel(where + " speaks provider interface " + std::to_string(p->interface_version) +
                                 ", and this program speaks " + std::to_string(FLUVIAL_PROVIDER_INTERFACE) +
                                 ": rebuild it with this program's fluvial/provider.h");
  }
  if (!GoodName(p->name)) {
    return Status::UnusableModel(where + " has no proper name: use lower case letters, digits and _");
  }
  if (p->backend_count < 1 || p->backends == nullptr) return Status::UnusableModel(where + " has no backends");
  if (provided_count + p->backend_count > kMaxProvided) {
    return Status::UnusableModel(where + " has " + std::to_string(p->backend_count) +
                                 " backends, and there is room for " + std::to_string(kMaxProvided - provided_count) +
                                 " more: load fewer providers");
  }
  for (int32_t i = 0; i < p->backend_count; ++i) {
    const fluvial_delta_backend& b = p->backends[i];
    const std::string which = where + ": backend " + std::to_string(i);
    if (!GoodName(b.name)) {
      return Status::UnusableModel(which + " has no proper name: use lower case letters, digits and _, and not auto");
    }
    if (b.check == nullptr || b.workspace_bytes == nullptr || b.cost_us == nullptr || b.run == nullptr) {
      return Status::UnusableModel(which + " ('" + b.name + "') lacks check, workspace_bytes, cost_us or run");
    }
    if (b.operators == 0 || b.operators >= 16) {
      return Status::UnusableModel(which + " ('" + b.name + "') serves no known operator: operators is " +
                                   std::to_string(b.operators));
    }
    for (int op = 0; op < 4; ++op) {
      if ((b.operators >> op & 1) == 0) continue;
      bool taken = false;
      for (const DeltaBackend& have : Backends(static_cast<Op>(op))) taken = taken || have.name == b.name;
      for (int32_t j = 0; j < i; ++j) {
        taken = taken || (std::string_view(p->backends[j].name) == b.name && (p->backends[j].operators >> op & 1) != 0);
      }
      if (taken) {
        return Status::InvalidArgument(where + ": " + std::string(Name(static_cast<Op>(op))) +
                                       " already has a backend '" + b.name + "'");
      }
    }
  }
  return Status::Ok();
}

Status Configure(const std::string& where, const fluvial_provider& p, const ProviderSettings& settings) {
  const auto own = settings.find(p.name);
  if (own == settings.end()) return Status::Ok();
  for (const auto& [key, value] : own->second) {
    if (p.configure == nullptr) {
      return Status::InvalidArgument(where + " takes no settings, and " + key + "=" + value + " was asked for");
    }
    Message error;
    if (p.configure(key.c_str(), value.c_str(), error.text, sizeof(error.text)) != 0) {
      return Status::InvalidArgument(where + ": " + key + "=" + value + ": " + error.Get("it does not take this"));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<LoadedProvider> LoadProvider(const std::string& path, const ProviderSettings& settings) {
  if (path.empty()) return Status::InvalidArgument("a provider's path is empty: give the path of its shared library");
  for (const LoadedProvider& p : Loaded()) {
    if (p.path != path) continue;
    if (!settings.contains(p.name)) return p;
    return Status::InvalidArgument("provider '" + path + "' is loaded already: give its settings the first time");
  }
  const std::string where = "provider '" + path + "'";
  // A name without a slash would be looked for in the system's folders.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  dlerror();
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Status::UnusableModel(where + " cannot be loaded: " + (why == nullptr ? "no reason given" : why));
  }
  // From here on the library stays: pointers into it may have been taken, and its own threads may run.
  auto* entry = reinterpret_cast<const fluvial_provider* (*)()>(dlsym(library, FLUVIAL_PROVIDER_ENTRY));
  if (entry == nullptr) {
    return Status::UnusableModel(where + " has no function " FLUVIAL_PROVIDER_ENTRY
                                         ": it is not a provider of backends (include/fluvial/provider.h)");
  }
  const fluvial_provider* p = entry();
  FLUVIAL_RETURN_IF_ERROR(CheckProvider(where, p));
  FLUVIAL_RETURN_IF_ERROR(Configure(where, *p, settings));
  LoadedProvider loaded{p->name, p->version == nullptr ? "" : p->version, path, {}};
  for (int32_t i = 0; i < p->backend_count; ++i) {
    Provided& slot = provided[provided_count];
    slot.backend = &p->backends[i];
    slot.name = p->backends[i].name;
    slot.description =
        std::string(p->backends[i].description == nullptr ? "no description" : p->backends[i].description) +
        " (provider " + loaded.name + (loaded.version.empty() ? "" : " " + loaded.version) + ")";
    DeltaBackend b = Trampolines(provided_count, std::make_integer_sequence<int, kMaxProvided>());
    b.name = slot.name;
    b.description = slot.description;
    for (int op = 0; op < 4; ++op) {
      if ((slot.backend->operators >> op & 1) != 0) AddBackend(static_cast<Op>(op), b);
    }
    ++provided_count;
    loaded.backends.push_back(slot.name);
  }
  Loaded().push_back(loaded);
  return loaded;
}

const std::vector<LoadedProvider>& LoadedProviders() { return Loaded(); }

bool ProviderLoaded(std::string_view name) {
  return std::any_of(Loaded().begin(), Loaded().end(), [&](const LoadedProvider& p) { return p.name == name; });
}

}  // namespace fluvial::ops::delta_rule
