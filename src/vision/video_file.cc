// SPDX-License-Identifier: Apache-2.0
// Video files through the programs ffprobe and ffmpeg, when they are installed. They are processes of their own:
// neither their licence nor their faults become this program's. No shell is involved, and they may open local files
// only.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <map>
#include <utility>

#include "vision/video_file.h"

extern char** environ;

namespace fluvial::vision {
namespace {

constexpr uint64_t kMaxFrameBytes = uint64_t{2} << 30;  // of the sampled frames together
constexpr int64_t kMaxFrames = 1'000'000;

/// A running program whose standard output is read; ends with its reader.
class Program {
 public:
  static Result<Program> Start(const std::vector<std::string>& words) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return Status::Resource("no pipe for " + words[0]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    std::vector<char*> argv;
    for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));
    argv.push_back(nullptr);
    Program p;
    const int error = posix_spawnp(&p.pid_, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    p.out_ = ends[0];
    if (error != 0) {
      p.pid_ = -1;
      return Status::InvalidArgument("video files need the programs ffprobe and ffmpeg, and " + words[0] +
                                     " cannot be started: install ffmpeg, or give a folder of frames");
    }
    return p;
  }

  Program(Program&& other) noexcept : pid_(std::exchange(other.pid_, -1)), out_(std::exchange(other.out_, -1)) {}
  Program& operator=(Program&&) = delete;
  ~Program() {
    if (out_ >= 0) close(out_);  // a program that still writes ends with it
    if (pid_ > 0) Wait();
  }

  /// Up to `n` bytes; fewer only at the end.
  size_t Read(uint8_t* to, size_t n) {
    size_t done = 0;
    while (done < n) {
      const ssize_t got = read(out_, to + done, n - done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

  /// True when it ended well.
  bool Finish() {
    close(std::exchange(out_, -1));
    return Wait();
  }

 private:
  Program() = default;
  bool Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  pid_t pid_ = -1;
  int out_ = -1;
};

struct Facts {
  int64_t frames = 0;
  double fps = 0;
};

Result<Facts> Probe(const std::string& path) {
  FLUVIAL_ASSIGN_OR_RETURN(
      Program probe, Program::Start({"ffprobe", "-v", "error", "-protocol_whitelist", "file", "-select_streams", "v:0",
                                     "-count_packets", "-show_entries", "stream=avg_frame_rate,nb_read_packets", "-of",
                                     "default=noprint_wrappers=1", "file:" + path}));
  std::string text(4096, '\0');
  text.resize(probe.Read(reinterpret_cast<uint8_t*>(text.data()), text.size()));
  const bool well = probe.Finish();
  std::map<std::string, std::string> values;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size()), equals = text.find('=', at);
    if (equals < end) values[text.substr(at, equals - at)] = text.substr(equals + 1, end - equals - 1);
    at = end + 1;
  }
  Facts facts;
  facts.frames = std::atoll(values["nb_read_packets"].c_str());
  const std::string& rate = values["avg_frame_rate"];  // "30000/1001"
  const size_t slash = rate.find('/');
  const double numerator = std::atof(rate.c_str());
  const double denominator = slash == std::string::npos ? 1 : std::atof(rate.c_str() + slash + 1);
  if (numerator > 0 && denominator > 0) facts.fps = numerator / denominator;
  if (!well || facts.frames < 1 || facts.frames > kMaxFrames) {
    return Status::InvalidArgument("ffprobe finds no video in it");
  }
  return facts;
}

/// One binary PPM of 8 bits: what ffmpeg writes per frame. False at the end, or when it is none.
bool ReadPpm(Program& program, const DecodeOptions& options, Image& out, Status& status) {
  std::array<int64_t, 3> numbers{};  // width, height, maximum
  uint8_t c = 0;
  uint8_t magic[3];
  if (program.Read(magic, 3) != 3 || magic[0] != 'P' || magic[1] != '6') return false;
  for (int64_t& n : numbers) {
    while (program.Read(&c, 1) == 1 && c >= '0' && c <= '9' && n < 1'000'000) n = 10 * n + (c - '0');
  }
  status = numbers[2] == 255 ? CheckPixels(numbers[0], numbers[1], options)
                             : Status::InvalidArgument("ffmpeg wrote something else than frames");
  if (!status.ok()) return false;
  out.width = numbers[0];
  out.height = numbers[1];
  out.rgb.resize(static_cast<size_t>(3 * out.width * out.height));
  return program.Read(out.rgb.data(), out.rgb.size()) == out.rgb.size();
}

}  // namespace

Result<Video> ReadVideoFile(const std::string& path, const ProcessorConfig& config, const VideoOptions& options) {
  FLUVIAL_ASSIGN_OR_RETURN(const Facts facts, Probe(path));
  Video out;
  out.fps = options.fps > 0 ? options.fps : facts.fps;
  out.total = facts.frames;
  const std::vector<int64_t> wanted = SampleFrames(config, out.total, out.fps);
  FLUVIAL_ASSIGN_OR_RETURN(
      Program ffmpeg, Program::Start({"ffmpeg", "-v", "error", "-nostdin", "-protocol_whitelist", "file,pipe", "-i",
                                      "file:" + path, "-map", "0:v:0", "-fps_mode", "passthrough", "-f", "image2pipe",
                                      "-c:v", "ppm", "-pix_fmt", "rgb24", "pipe:1"}));
  Status status;
  Image frame;
  uint64_t bytes = 0;
  for (int64_t i = 0; out.frames.size() < wanted.size() && ReadPpm(ffmpeg, options.frame, frame, status); ++i) {
    if (i != wanted[out.frames.size()]) continue;
    bytes += frame.rgb.size();
    if (bytes > kMaxFrameBytes) {
      return Status::InvalidArgument("its " + std::to_string(wanted.size()) + " sampled frames of " +
                                     std::to_string(frame.width) + " x " + std::to_string(frame.height) +
                                     " pixels take more than 2 GiB: give a smaller or shorter video");
    }
    out.indices.push_back(i);
    out.frames.push_back(std::move(frame));
    frame = Image();
  }
  FLUVIAL_RETURN_IF_ERROR(status);
  // Packets that hold no frame of their own (rare) make the last ones missing; what is there is used.
  if (out.frames.empty()) return Status::InvalidArgument("ffmpeg decodes no frame of it");
  return out;
}

}  // namespace fluvial::vision
