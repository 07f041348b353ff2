// SPDX-License-Identifier: Apache-2.0
#include "tools/child_server.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

extern char** environ;

namespace fluvial::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::milliseconds(10);

int OpenTemporary() {
  const char* folder = std::getenv("TMPDIR");
  std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/fluvial-XXXXXX";
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd >= 0) unlink(path.c_str());
  return fd;
}

std::string LastLine(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  const size_t end = text.rfind('\n');
  return end == std::string::npos ? text : text.substr(end + 1);
}

}  // namespace

Result<std::unique_ptr<ChildServer>> ChildServer::Start(const std::vector<std::string>& arguments) {
  std::unique_ptr<ChildServer> child(new ChildServer());
  child->out_ = OpenTemporary();
  child->log_ = OpenTemporary();
  if (child->out_ < 0 || child->log_ < 0) return Status::Failed("no temporary file can be made (TMPDIR)");
  std::vector<std::string> words = {"fluvial"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  words.insert(words.end(), {"--port", "0"});
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, child->out_, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child->log_, STDERR_FILENO);
  const int error = posix_spawn(&child->pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    child->pid_ = -1;
    return Status::Failed("a process for the server cannot be started");
  }
  return child;
}

ChildServer::~ChildServer() {
  if (pid_ > 0 && Ended().empty()) {
    kill(pid_, SIGTERM);
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    while (Ended().empty() && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
    if (!reaped_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &status_, 0);
    }
  }
  if (out_ >= 0) close(out_);
  if (log_ >= 0) close(log_);
}

Result<std::string> ChildServer::WaitUrl(std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (true) {
    const std::string ended = Ended();
    const std::string text = Read(out_);
    const size_t line = text.find('\n');
    const size_t at = text.rfind("http", line);
    if (line != std::string::npos && at != std::string::npos) return text.substr(at, line - at);
    if (!ended.empty()) {
      if (WIFEXITED(status_) && WEXITSTATUS(status_) == 4) return Status::Refused(ended);
      return Status::Failed(ended);
    }
    if (Clock::now() > deadline) {
      return Status::Failed("the server was not ready after " + std::to_string(limit.count() / 1000) + " s");
    }
    std::this_thread::sleep_for(kPoll);
  }
}

std::string ChildServer::Ended() {
  if (!reaped_) {
    if (waitpid(pid_, &status_, WNOHANG) != pid_) return "";
    reaped_ = true;
  }
  if (WIFSIGNALED(status_)) return "killed by signal " + std::to_string(WTERMSIG(status_));
  return "exit status " + std::to_string(WEXITSTATUS(status_)) + ": " + LastLine(Log());
}

std::string ChildServer::Log() const { return Read(log_); }

std::string ChildServer::Read(int fd) const {
  std::string text(65536, '\0');
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

}  // namespace fluvial::tools
