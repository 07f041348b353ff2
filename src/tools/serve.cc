// SPDX-License-Identifier: Apache-2.0
// fluvial serve: the OpenAI API over HTTP, until SIGTERM or Ctrl-C.
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>

#include "base/log.h"
#include "server/image_input.h"
#include "server/server.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/load_notice.h"

namespace fluvial::tools {
namespace {

constexpr int32_t kDefaultSequences = 32;

struct Options {
  EngineFlags engine;
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  std::vector<std::string> api_keys;
  std::vector<std::string> names;
  std::string generation_config = "auto";
  int64_t max_requests = 1024;
  int64_t max_connections = 4096;
  int64_t max_body_mib = 32;
  int64_t max_pending_kib = 1024;
  int32_t max_logprobs = 20;
  int32_t workers = 2;
  server::MediaPolicy media;
  double media_timeout = 10;
  int64_t max_image_mib = 20;
  double request_timeout = 600;
  double idle_timeout = 75;
  double header_timeout = 10;
  double body_timeout = 60;
  double write_timeout = 30;
  vision::DecodeOptions decode;
  double drain_timeout = 30;
  std::string log_level = "info";
};

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

Status CheckOptions(const Options& o) {
  const auto out_of_range = [](const std::string& name, const std::string& must) {
    return Status::InvalidArgument(name + " must be " + must);
  };
  if (o.port < 0 || o.port > 65535) return out_of_range("--port", "0 (any free port) to 65535");
  if (o.generation_config != "auto" && o.generation_config != "none") {
    return out_of_range("--generation-config", "auto or none");
  }
  if (o.max_requests < 1) return out_of_range("--max-requests", "at least 1");
  if (o.max_connections < 1 || o.max_connections > 1'000'000) return out_of_range("--max-connections", "1..1000000");
  if (o.max_body_mib < 1 || o.max_body_mib > 4096) return out_of_range("--max-body-mib", "1..4096");
  if (o.max_pending_kib < 16) return out_of_range("--max-pending-kib", "at least 16");
  if (o.max_logprobs < 0 || o.max_logprobs > 1024) return out_of_range("--max-logprobs", "0..1024");
  if (o.media.max_images < 0) return out_of_range("--limit-images", "0 or more");
  if (o.max_image_mib < 1 || o.max_image_mib > 4096) return out_of_range("--max-image-mib", "1..4096");
  if (!o.media.local_path.empty() && !std::filesystem::is_directory(o.media.local_path)) {
    return out_of_range("--allowed-local-media-path", "a folder that is there");
  }
  if (o.workers < 1 || o.workers > 256) return out_of_range("--workers", "1..256");
  for (const double seconds : {o.idle_timeout, o.header_timeout, o.body_timeout, o.write_timeout, o.media_timeout}) {
    if (!(seconds > 0 && seconds < 1e6)) return out_of_range("a timeout", "above 0 seconds");
  }
  if (!(o.request_timeout >= 0 && o.request_timeout < 1e6))
    return out_of_range("--request-timeout", "0 (none) or more");
  if (!(o.drain_timeout >= 0 && o.drain_timeout < 1e6)) return out_of_range("--drain-timeout", "0 or more");
  for (const std::string& key : o.api_keys) {
    if (key.empty()) return out_of_range("--api-key", "a key; leave the option out to serve everybody");
  }
  return LogToStderr(o.log_level);
}

server::ServerOptions ToServerOptions(const Options& o) {
  server::ServerOptions s;
  s.http.host = o.host;
  s.http.port = static_cast<uint16_t>(o.port);
  s.http.max_connections = static_cast<int32_t>(o.max_connections);
  s.http.max_body_bytes = static_cast<uint64_t>(o.max_body_mib) << 20;
  s.http.max_pending_bytes = static_cast<uint64_t>(o.max_pending_kib) << 10;
  s.http.idle_timeout = Milliseconds(o.idle_timeout);
  s.http.header_timeout = Milliseconds(o.header_timeout);
  s.http.body_timeout = Milliseconds(o.body_timeout);
  s.http.write_timeout = Milliseconds(o.write_timeout);
  s.api.keys = o.api_keys;
  s.api.limits.max_logprobs = o.max_logprobs;
  s.api.request_timeout = Milliseconds(o.request_timeout);
  s.api.workers = o.workers;
  s.api.media = o.media;
  s.api.media.timeout = Milliseconds(o.media_timeout);
  s.api.media.max_bytes = static_cast<uint64_t>(o.max_image_mib) << 20;
  s.max_requests = o.max_requests;
  return s;
}

/// Each connection is a file descriptor, and the usual limit of 1024 is there for programs that use select().
void RaiseFileLimit(int64_t connections) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const auto need = static_cast<rlim_t>(connections) + 64;
  if (files.rlim_max != RLIM_INFINITY && files.rlim_max < need) {
    LogWarning("this process may open " + std::to_string(files.rlim_max) +
               " files, fewer than --max-connections needs (" + std::to_string(need) +
               "): raise the limit (ulimit -n, LimitNOFILE)");
  }
}

/// SIGTERM and SIGINT, kept from every thread and waited for in one place.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
    signal(SIGPIPE, SIG_IGN);  // a client that goes is an error of its socket
  }
  ~Signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// True when a signal came within a second.
  bool Wait() {
    const timespec second{1, 0};
    return sigtimedwait(&set_, nullptr, &second) > 0;
  }

 private:
  sigset_t set_, before_;
};

Result<int> Serve(const Options& o) {
  FLUVIAL_RETURN_IF_ERROR(CheckOptions(o));
  FLUVIAL_ASSIGN_OR_RETURN(EngineOptions engine_options, ToEngineOptions(o.engine));
  Signals signals;  // before any thread starts
  std::unique_ptr<Engine> engine;
  {
    const LoadNotice notice(engine_options.model);
    FLUVIAL_ASSIGN_OR_RETURN(engine, Engine::Load(engine_options));
  }
  WarnOfUnusedBackends(engine_options, *engine);
  FLUVIAL_ASSIGN_OR_RETURN(
      server::ServedModel model,
      server::ServedModel::Load(engine_options.model, o.names, engine->info(), o.generation_config == "auto"));
  if (engine->info().has_vision) {
    auto images = server::MakeImageInput(engine_options.model, o.decode);
    if (images.ok()) {
      model.images = std::move(images).value();
    } else {
      LogWarning("images are refused: " + images.status().message());
    }
  }
  RaiseFileLimit(o.max_connections);
  const std::string name = model.names.front();
  server::ServerOptions server_options = ToServerOptions(o);
  server_options.cache_config = {
      {"block_size", std::to_string(engine_options.block_size)},
      {"num_gpu_blocks", std::to_string(engine->stats().kv_pages_total)},
      {"cache_dtype", engine->info().dtype},
      {"enable_prefix_caching", engine_options.enable_prefix_caching ? "True" : "False"},
      {"mamba_ssm_cache_dtype", engine_options.mamba_ssm_cache_dtype},
  };
  FLUVIAL_ASSIGN_OR_RETURN(const std::unique_ptr<server::Server> server,
                           server::Server::Start(std::move(engine), std::move(model), server_options));
  Print("serving " + name + " on http://" + o.host + ":" + std::to_string(server->port()) + "\n");
  while (!signals.Wait()) {
    if (!server->alive()) return Status::Failed("the engine has stopped: see the log above, then start again");
  }
  LogInfo("draining: answers under way have " + std::to_string(o.drain_timeout) + " s to end");
  const bool clean = server->Drain(Milliseconds(o.drain_timeout));
  LogInfo(clean ? "drained" : "the time is up: what was left has been cancelled");
  return Finish();
}

void AddLimits(CLI::App& app, Options& o) {
  const char* group = "Limits";
  app.add_option("--max-requests", o.max_requests, "Answers running and waiting; more are refused (503)")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-connections", o.max_connections, "Open connections; more are refused (503)")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-body-mib", o.max_body_mib, "Largest body of a request, in MiB (413)")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-pending-kib", o.max_pending_kib, "A client so far behind its stream is cut off")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-logprobs", o.max_logprobs, "Most alternatives a request may ask for")
      ->type_name("K")
      ->capture_default_str()
      ->group(group);
  const auto seconds = [&](const char* option, double& value, const char* what) {
    app.add_option(option, value, what)->type_name("SECONDS")->capture_default_str()->group("Timeouts");
  };
  seconds("--request-timeout", o.request_timeout, "From arrival to the last token (504); 0: none");
  seconds("--idle-timeout", o.idle_timeout, "A connection without a request");
  seconds("--header-timeout", o.header_timeout, "A request's head (408)");
  seconds("--body-timeout", o.body_timeout, "A request's body (408)");
  seconds("--write-timeout", o.write_timeout, "A client that takes nothing of its answer");
  seconds("--drain-timeout", o.drain_timeout, "After SIGTERM: answers under way");
}

void AddMedia(CLI::App& app, Options& o) {
  const char* group = "Images (for models that take them)";
  app.add_option("--max-image-pixels", o.decode.max_image_pixels, "Larger pictures are refused")
      ->type_name("N")
      ->capture_default_str()
      ->group(group)
      ->check(CLI::PositiveNumber);
  app.add_flag("--ignore-exif", o.decode.ignore_exif,
               "Leave pictures as they are stored (as transformers does) instead of turning them upright")
      ->group(group);
  app.add_option("--limit-images", o.media.max_images, "Most images of one request")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-image-mib", o.max_image_mib, "Largest image, encoded")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--allow-media-fetch", o.media.fetch, "Fetch http(s) URLs that clients name")->group(group);
  app.add_option("--allowed-media-domains", o.media.domains, "Fetch from these hosts only")
      ->type_name("HOST")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_flag("--allow-private-media", o.media.private_addresses,
               "Fetch from this machine and private networks too: clients then reach what the server reaches")
      ->group(group);
  app.add_option("--allowed-local-media-path", o.media.local_path, "Read file:// URLs under this folder")
      ->type_name("FOLDER")
      ->group(group);
  app.add_option("--media-timeout", o.media_timeout, "For one image")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->group(group);
}

}  // namespace

Command AddServe(CLI::App& root) {
  CLI::App* app = root.add_subcommand("serve", "Serve the OpenAI API over HTTP (docs/server.md)");
  auto o = std::make_shared<Options>();
  o->engine.engine.max_num_seqs = kDefaultSequences;
  AddEngineFlags(*app, o->engine);
  AddBatchingFlags(*app, o->engine);
  app->add_option("--host", o->host, "Address to listen on; 0.0.0.0: all")->type_name("ADDRESS")->capture_default_str();
  app->add_option("--port", o->port, "0: any free port")->type_name("N")->capture_default_str();
  app->add_option("--api-key", o->api_keys, "Clients must send one of these as Authorization: Bearer KEY")
      ->type_name("KEY")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--served-model-name", o->names, "What clients call the model; default: MODEL as given")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--generation-config", o->generation_config,
                  "Sampling defaults of requests: auto (the model's generation_config.json) or none")
      ->type_name("WHICH")
      ->capture_default_str();
  app->add_option("--workers", o->workers, "Threads that read requests")->type_name("N")->capture_default_str();
  AddLimits(*app, *o);
  AddMedia(*app, *o);
  app->add_option("--log-level", o->log_level, "debug, info, warning or error")
      ->type_name("LEVEL")
      ->capture_default_str();
  app->footer(
      "Examples:\n"
      "  fluvial serve ./Qwen3.5-0.8B\n"
      "  fluvial serve ./Qwen3.5-0.8B --host 0.0.0.0 --port 8080 --served-model-name qwen --api-key SECRET\n"
      "  curl localhost:8000/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'");
  return {app, [o] {
            const Result<int> r = Serve(*o);
            return r.ok() ? *r : Fail(r.status());
          }};
}

}  // namespace fluvial::tools
