// SPDX-License-Identifier: Apache-2.0
// fluvial serve as a person or a supervisor sees it: wrong options, the line it starts with, the signal it ends with.
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include "cli_testkit.h"

extern char** environ;

namespace fluvial::tools {
namespace {

const char kModel[] = "models/demo-random-gdn";

TEST_F(CliTest, ServeRefusesWrongOptions) {
  const std::string serve = "serve " + Source(kModel).string() + " ";
  ExpectError("serve", 2, "--model");
  ExpectError(serve + "--port 70000", 2, "--port");
  ExpectError(serve + "--port ten", 2, "--port");
  ExpectError(serve + "--api-key ''", 2, "--api-key");
  ExpectError(serve + "--generation-config none-such", 2, "auto or none");
  ExpectError(serve + "--max-requests 0", 2, "--max-requests");
  ExpectError(serve + "--idle-timeout 0", 2, "timeout");
  ExpectError(serve + "--allowed-local-media-path /no/such/folder", 2, "--allowed-local-media-path");
  ExpectError("serve " + folder().string(), 3, "config.json");
  ExpectError(serve + "--host no.such.host.invalid --log-level error", 2, "no.such.host.invalid");
}

TEST_F(CliTest, ServeAnnouncesItselfAndDrainsOnSigterm) {
  int out[2];
  ASSERT_EQ(pipe(out), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_addclose(&actions, out[0]);
  std::string program = FLUVIAL_PROGRAM, serve = "serve", model = Source(kModel), port = "--port=0",
              level = "--log-level=error";
  char* arguments[] = {program.data(), serve.data(), model.data(), port.data(), level.data(), nullptr};
  pid_t pid = 0;
  ASSERT_EQ(posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  std::string line;
  char c = 0;
  while (read(out[0], &c, 1) == 1 && c != '\n') line += c;
  EXPECT_NE(line.find("serving "), std::string::npos) << line;
  EXPECT_NE(line.find(" on http://127.0.0.1:"), std::string::npos) << line;
  kill(pid, SIGTERM);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  close(out[0]);
}

}  // namespace
}  // namespace fluvial::tools
