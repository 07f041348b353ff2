// SPDX-License-Identifier: Apache-2.0
// fluvial bench: op, serve, latency, throughput.
#include "tools/command.h"

namespace fluvial::tools {

Command AddBench(CLI::App& root) {
  CLI::App* app = root.add_subcommand("bench", "Measure: bench op, bench serve, bench latency, bench throughput");
  app->require_subcommand(1);
  std::vector<Command> commands = {AddBenchOp(*app), AddBenchServe(*app), AddBenchLatency(*app),
                                   AddBenchThroughput(*app)};
  return {app, [commands] {
            for (const Command& c : commands) {
              if (c.app->parsed()) return c.run();
            }
            return static_cast<int>(kUsage);
          }};
}

}  // namespace fluvial::tools
