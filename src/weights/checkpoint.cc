// SPDX-License-Identifier: Apache-2.0
#include "weights/checkpoint.h"

#include <filesystem>
#include <map>
#include <utility>

#include "weights/json_reader.h"

namespace fluvial::weights {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSingle = "model.safetensors";
constexpr size_t kMaxIndexBytes = size_t{256} << 20;

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// A shard name must stay inside the directory.
bool PlainFileName(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos && name != "." &&
         name != "..";
}

/// "a, b, c and 12 more".
std::string Some(const std::vector<std::string>& names) {
  std::string out;
  const size_t shown = names.size() < 8 ? names.size() : 8;
  for (size_t i = 0; i < shown; ++i) out += (i ? ", " : "") + names[i];
  if (shown < names.size()) out += " and " + std::to_string(names.size() - shown) + " more";
  return out;
}

}  // namespace

Status Checkpoint::AddFile(const std::string& path) {
  FLUVIAL_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  const int shard = static_cast<int>(files_.size());
  for (const TensorEntry& entry : file.entries()) {
    const auto [it, inserted] = by_name_.emplace(entry.name, tensors_.size());
    if (!inserted) {
      return Status::UnusableModel("tensor '" + entry.name + "' is in " + FileOf(tensors_[it->second]) + " and in " +
                                   path + "; remove the file that does not belong to this checkpoint");
    }
    tensors_.push_back({entry, shard});
  }
  files_.push_back(std::move(file));
  return Status::Ok();
}

Result<Checkpoint> Checkpoint::Open(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return Status::UnusableModel(directory + " is not a directory; give the directory of a Hugging Face checkpoint");
  }
  Checkpoint out;
  out.directory_ = directory;
  const std::string index = directory + "/" + kIndex;
  if (!Exists(index)) {
    const std::string single = directory + "/" + kSingle;
    if (!Exists(single)) {
      return Status::UnusableModel(directory + " has neither " + kSingle + " nor " + kIndex +
                                   "; download the checkpoint's .safetensors files (other formats must be converted)");
    }
    FLUVIAL_RETURN_IF_ERROR(out.AddFile(single));
    return out;
  }
  FLUVIAL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index, kMaxIndexBytes));
  std::map<std::string, std::string> weight_map;
  FLUVIAL_RETURN_IF_ERROR(ReadStringMap(text, index, "weight_map", weight_map));
  if (weight_map.empty()) return Status::UnusableModel(index + ": weight_map is empty; download the index again");
  std::map<std::string, int> shard_of;
  std::vector<std::string> missing_files;
  for (const auto& [tensor, name] : weight_map) {
    if (!PlainFileName(name)) {
      return Status::UnusableModel(index + ": tensor '" + tensor + "' lies in '" + name +
                                   "', which is not a plain file name; download the index again");
    }
    if (!shard_of.emplace(name, -1).second) continue;
    if (!Exists(directory + "/" + name)) missing_files.push_back(name);
  }
  if (!missing_files.empty()) {
    return Status::UnusableModel(index + " names shards that are not there: " + Some(missing_files) +
                                 "; download them into the same directory");
  }
  for (auto& [name, shard] : shard_of) {
    shard = static_cast<int>(out.files_.size());
    FLUVIAL_RETURN_IF_ERROR(out.AddFile(directory + "/" + name));
  }
  std::vector<std::string> missing;
  for (const auto& [tensor, name] : weight_map) {
    const CheckpointTensor* found = out.Find(tensor);
    if (found == nullptr || found->shard != shard_of[name]) missing.push_back(tensor + " (" + name + ")");
  }
  if (!missing.empty()) {
    return Status::UnusableModel(index + " names tensors that are not in their shard: " + Some(missing) +
                                 "; index and shards are of different checkpoints, download both again");
  }
  return out;
}

uint64_t Checkpoint::bytes() const {
  uint64_t total = 0;
  for (const SafetensorsFile& file : files_) total += file.bytes();
  return total;
}

const CheckpointTensor* Checkpoint::Find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace fluvial::weights
