// SPDX-License-Identifier: Apache-2.0
// Loading: options to a ready EngineImpl, and what the engine tells about itself.
#include "fluvial/engine.h"

#include <algorithm>
#include <utility>

#include <sys/resource.h>

#include "base/log.h"
#include "engine/memory_budget.h"
#include "engine/scheduler.h"
#include "weights/generation_config.h"
#include "weights/model_config.h"

namespace fluvial {

std::string_view Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

namespace engine {
namespace {

constexpr int64_t kDefaultModelLen = 8192;
/// Chunks of prompts end on multiples of it: the chunk of the delta rule.
constexpr int64_t kGrid = 64;
/// Rows of one step whose logits are computed for prompt_logprobs.
constexpr int64_t kPromptRows = 64;

Status OutOfRange(const char* name, int64_t value, const std::string& range) {
  return Status::InvalidArgument(std::string(name) + " is " + std::to_string(value) + ": it must be " + range);
}

Status CheckOptions(const EngineOptions& o) {
  if (o.model.empty()) return Status::InvalidArgument("no model given: name the directory of a checkpoint");
  if (o.max_num_seqs < 1 || o.max_num_seqs > 65535) return OutOfRange("max_num_seqs", o.max_num_seqs, "1..65535");
  if (o.max_num_batched_tokens < o.max_num_seqs || o.max_num_batched_tokens > (1 << 20)) {
    return OutOfRange("max_num_batched_tokens", o.max_num_batched_tokens, "from max_num_seqs to 1048576");
  }
  if (o.block_size < 1 || o.block_size > ops::paged_attention::KvPlan::kMaxPageSize) {
    return OutOfRange("block_size", o.block_size, "1..1024");
  }
  if (o.max_model_len < 0) return OutOfRange("max_model_len", o.max_model_len, "0 (automatic) or more");
  if (o.long_prefill_token_threshold < 0) {
    return OutOfRange("long_prefill_token_threshold", o.long_prefill_token_threshold, "0 (none) or more");
  }
  if (o.kv_cache_tokens < 0) return OutOfRange("kv_cache_tokens", o.kv_cache_tokens, "0 (automatic) or more");
  if (o.prefix_cache_points != "grid" && o.prefix_cache_points != "all") {
    return Status::InvalidArgument("prefix_cache_points is '" + o.prefix_cache_points + "': use grid or all");
  }
  if (o.prefix_cache_interval < 0 || o.prefix_cache_interval % kGrid != 0) {
    return OutOfRange("prefix_cache_interval", o.prefix_cache_interval, "0 (none) or a multiple of 64");
  }
  if (o.threads < 0) return OutOfRange("threads", o.threads, "0 (automatic) or more");
  return Status::Ok();
}

Result<std::unique_ptr<Stream>> MakeStream(const EngineOptions& o) {
  if (o.device == "auto" || o.device == "cpu") return MakeCpuStream(o.threads);
  if (o.device == "cuda" || o.device.starts_with("cuda:")) {
    int index = 0;
    if (o.device.size() > 5) {
      const std::string digits = o.device.substr(5);
      if (digits.size() > 3 || digits.find_first_not_of("0123456789") != std::string::npos) {
        return Status::InvalidArgument("device '" + o.device + "': write cuda:N with a number N");
      }
      index = std::stoi(digits);
    }
    return MakeCudaStream(index);
  }
  return Status::InvalidArgument("unknown device '" + o.device + "': use auto, cpu, cuda or cuda:N");
}

Result<std::optional<DType>> OptionalDType(const std::string& text) {
  if (text.empty() || text == "auto") return std::optional<DType>();
  FLUVIAL_ASSIGN_OR_RETURN(const DType dtype, ParseDType(text));
  return std::optional<DType>(dtype);
}

uint64_t PeakMemory() {
  struct rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;  // Linux counts KiB
}

/// End tokens: generation_config.json, else config.json.
Result<std::vector<int32_t>> ReadEos(const std::string& directory) {
  FLUVIAL_ASSIGN_OR_RETURN(const weights::GenerationConfig generation, weights::ReadGenerationConfig(directory));
  std::vector<int64_t> ids = generation.eos_tokens;
  if (ids.empty()) {
    FLUVIAL_ASSIGN_OR_RETURN(const weights::ModelConfig config, weights::ReadModelConfig(directory));
    ids = config.eos_tokens;
  }
  std::vector<int32_t> out;
  for (const int64_t id : ids) {
    if (id >= 0 && id <= INT32_MAX) out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

}  // namespace

EngineImpl::EngineImpl(const EngineOptions& options, std::unique_ptr<Stream> stream,
                       std::unique_ptr<models::Model> model)
    : options_(options), stream_(std::move(stream)), model_(std::move(model)) {}

EngineImpl::~EngineImpl() = default;

Status EngineImpl::Prepare(std::vector<int32_t> eos) {
  info_.architecture = model_->architecture();
  info_.device = stream_->device().Arch();
  info_.device_name = stream_->device().name;
  info_.dtype = Name(model_->dtype());
  info_.vocab_size = model_->vocab();
  info_.parameters = model_->parameters();
  info_.has_vision = model_->has_vision();
  info_.eos_ids = std::move(eos);
  info_.max_model_len =
      options_.max_model_len > 0 ? options_.max_model_len : std::min(model_->max_positions(), kDefaultModelLen);
  if (info_.max_model_len > model_->max_positions()) {
    return Status::InvalidArgument("max_model_len is " + std::to_string(info_.max_model_len) +
                                   ", but the model was made for " + std::to_string(model_->max_positions()) +
                                   " positions: lower it");
  }
  sampler_.emplace(info_.vocab_size);
  return Allocate();
}

Status EngineImpl::Allocate() {
  BatchLimits limits;
  limits.sequences = options_.max_num_seqs;
  limits.tokens = options_.max_num_batched_tokens;
  limits.length = info_.max_model_len;
  limits.page_size = options_.block_size;
  FLUVIAL_ASSIGN_OR_RETURN(batch_, Batch::Create(*stream_, limits, info_.vocab_size,
                                                 {model_->dtype(), model_->vision_levels(), model_->vision_width()}));

  // Scratch depends on shapes alone: it is known before there are any caches.
  const models::CacheSpec& spec = model_->cache_spec();
  const std::vector<models::LayerCache> shapes =
      CachePool::Layout(spec, /*pages=*/1, options_.block_size, options_.max_num_seqs + 1);
  const int64_t prompt = std::min(options_.max_num_batched_tokens, info_.max_model_len);
  FLUVIAL_RETURN_IF_ERROR(batch_->Assume(*stream_, 1, prompt, info_.max_model_len - prompt));
  FLUVIAL_ASSIGN_OR_RETURN(size_t workspace, model_->WorkspaceBytes(batch_->Step(shapes)));
  if (info_.max_model_len > 1) {
    for (const int32_t n : {1, options_.max_num_seqs}) {
      FLUVIAL_RETURN_IF_ERROR(batch_->Assume(*stream_, n, 1, info_.max_model_len - 1));
      FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, model_->WorkspaceBytes(batch_->Step(shapes)));
      workspace = std::max(workspace, bytes);
    }
  }
  FLUVIAL_ASSIGN_OR_RETURN(const size_t vision, VisionWorkspace());
  workspace = std::max(workspace, vision);

  MemoryRequest memory;
  memory.weights = model_->weight_bytes();
  memory.workspace = workspace + static_cast<uint64_t>(options_.max_num_seqs) *
                                     static_cast<uint64_t>(info_.vocab_size) * sizeof(float);
  memory.page_bytes = spec.TokenBytes() * static_cast<uint64_t>(options_.block_size);
  memory.slot_bytes = spec.SlotBytes();
  memory.page_size = options_.block_size;
  memory.max_model_len = info_.max_model_len;
  memory.sequences = options_.max_num_seqs;
  memory.kv_cache_tokens = options_.kv_cache_tokens;
  memory.prefix_caching = options_.enable_prefix_caching;
  memory.prefix_cache_bytes = options_.prefix_cache_bytes;
  memory.limit = options_.memory_limit > 0 ? options_.memory_limit : DeviceMemoryLimit(stream_->device());
  memory.limit_source = options_.memory_limit > 0 ? "memory_limit" : "all that this machine or container has";
  FLUVIAL_ASSIGN_OR_RETURN(const MemoryBudget budget, PlanMemory(memory));
  info_.memory = budget.text;
  LogInfo(budget.text);

  PlannerOptions plan;
  plan.sequences = options_.max_num_seqs;
  plan.step_tokens = options_.max_num_batched_tokens;
  plan.chunk_tokens = options_.long_prefill_token_threshold;
  plan.page_size = options_.block_size;
  plan.pages = budget.pages;
  plan.grid = kGrid;
  plan.prompt_rows = kPromptRows;
  plan.cache = options_.enable_prefix_caching;
  plan.snapshots = budget.snapshots;
  plan.interval = options_.prefix_cache_interval;
  plan.all_points = options_.prefix_cache_points == "all";
#ifndef NDEBUG
  // Whoever reads a slot or a page that nobody owns is found out.
  plan.on_slot_free = [this](int32_t slot) { pool_->PoisonSlot(slot); };
  plan.on_page_free = [this](int32_t page) { pool_->PoisonPage(page); };
#endif
  planner_.emplace(std::move(plan));
  if (options_.enable_prefix_caching) {
    LogInfo("prefix cache: " + std::to_string(budget.snapshots) + " snapshots of " + FormatBytes(memory.slot_bytes) +
            ", at multiples of " + std::to_string(kGrid) + " where prompts end or part" +
            (options_.prefix_cache_interval > 0
                 ? " and at most " + std::to_string(options_.prefix_cache_interval) + " tokens apart"
                 : "") +
            (options_.prefix_cache_points == "all" ? ", and at the ends of prompts and answers" : ""));
  }
  FLUVIAL_ASSIGN_OR_RETURN(
      pool_, CachePool::Create(spec, budget.pages, options_.block_size, planner_->slots(), stream_->device()));
  FLUVIAL_RETURN_IF_ERROR(EnsureWorkspace(workspace));
  stats_.weight_bytes = memory.weights;
  stats_.kv_bytes = pool_->kv_bytes();
  stats_.state_bytes = pool_->state_bytes();
  stats_.snapshot_bytes = static_cast<uint64_t>(budget.snapshots) * memory.slot_bytes;
  stats_.memory_limit_bytes = memory.limit;
  stats_.kv_pages_total = budget.pages;
  stats_.state_slots_total = options_.max_num_seqs;
  stats_.snapshot_slots_total = budget.snapshots;
  return Status::Ok();
}

EngineStats EngineImpl::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats out = stats_;
  out.requests_waiting += static_cast<int32_t>(submitted_.size());
  out.peak_memory_bytes = PeakMemory();
  return out;
}

std::vector<BackendUse> EngineImpl::backends() const {
  std::vector<BackendUse> out;
  for (const models::OperatorUse& use : model_->operators()) out.push_back({use.op, use.name, use.explanation});
  return out;
}

}  // namespace engine

Result<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  const engine::Clock::time_point start = engine::Clock::now();
  FLUVIAL_RETURN_IF_ERROR(engine::CheckOptions(options));
  models::LoadOptions load;
  FLUVIAL_ASSIGN_OR_RETURN(load.dtype, engine::OptionalDType(options.dtype));
  FLUVIAL_ASSIGN_OR_RETURN(load.conv_dtype, engine::OptionalDType(options.mamba_cache_dtype));
  FLUVIAL_ASSIGN_OR_RETURN(load.recurrent_dtype, engine::OptionalDType(options.mamba_ssm_cache_dtype));
  load.backends = options.backends;
  FLUVIAL_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, engine::MakeStream(options));
  FLUVIAL_ASSIGN_OR_RETURN(std::unique_ptr<models::Model> model, models::LoadModel(options.model, load, *stream));
  FLUVIAL_ASSIGN_OR_RETURN(std::vector<int32_t> eos, engine::ReadEos(options.model));
  auto out = std::make_unique<engine::EngineImpl>(options, std::move(stream), std::move(model));
  FLUVIAL_RETURN_IF_ERROR(out->Prepare(std::move(eos)));
  out->SetLoadSeconds(engine::Seconds(start, engine::Clock::now()));
  return std::unique_ptr<Engine>(std::move(out));
}

}  // namespace fluvial
