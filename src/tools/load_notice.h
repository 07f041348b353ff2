// SPDX-License-Identifier: Apache-2.0
// LoadNotice: tells a person at a terminal that a slow load is alive.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace fluvial::tools {

/// From one second on, while it lives, draws "loading NAME [  ===  ] 3 s" on stderr and keeps it moving; the
/// destructor removes it. Does nothing when stderr is not a terminal.
class LoadNotice {
 public:
  explicit LoadNotice(std::string name);
  ~LoadNotice();
  LoadNotice(const LoadNotice&) = delete;
  LoadNotice& operator=(const LoadNotice&) = delete;

 private:
  void Draw();

  std::string name_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace fluvial::tools
