#include "checkpoint/checkpoint.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors.h"

namespace lk {
namespace {

using WeightMap = std::map<std::string, std::string>;  // tensor -> shard file

constexpr std::string_view kIndexName = "model.safetensors.index.json";

// A shard is a file beside the index; anything that could lead elsewhere is refused.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name[0] != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

Result<WeightMap> read_index(const std::string& path) {
  LK_ASSIGN_OR_RETURN(Json index, read_json_file(path));
  LK_ASSIGN_OR_RETURN(JsonFields map, JsonFields(index, path).object("weight_map"));
  WeightMap weights;
  for (const auto& [name, shard] : map.json().items()) {
    if (!shard.is_string()) return invalid("{}: tensor {} names no shard file", path, name);
    const auto& file = shard.get_ref<const std::string&>();
    if (!is_plain_file_name(file)) {
      return invalid("{}: tensor {} names the shard {}, expected a file name without folders", path,
                     name, shard.dump(-1, ' ', true, Json::error_handler_t::replace));
    }
    weights.emplace(name, file);
  }
  if (weights.empty()) return invalid("{}: weight_map is empty", path);
  return weights;
}

}  // namespace

struct Checkpoint::Impl {
  std::string folder;
  HfConfig config;
  std::vector<SafetensorsFile> files;
  std::map<std::string, TensorView> tensors;
  size_t total_bytes = 0;
  bool has_data = false;

  Status add(const std::map<std::string, TensorView>& part, const std::string& file) {
    for (const auto& [name, view] : part) {
      if (!tensors.emplace(name, view).second) {
        return invalid("{}: tensor {} stands in another shard too", file, name);
      }
      total_bytes += view.bytes();
    }
    return {};
  }

  Status open_shards(const std::string& index_path) {
    LK_ASSIGN_OR_RETURN(const WeightMap weights, read_index(index_path));
    std::set<std::string> shards;
    for (const auto& [name, shard] : weights) shards.insert(shard);
    for (const std::string& shard : shards) {
      auto file = SafetensorsFile::open(folder + "/" + shard);
      if (!file && file.error().kind == ErrorKind::kNotFound) {
        return fail(ErrorKind::kNotFound, "{} names the shard {}, which is not there", index_path,
                    shard);
      }
      if (!file) return tl::unexpected<Error>(std::move(file).error());
      for (const auto& [name, view] : file->tensors()) {
        const auto entry = weights.find(name);
        if (entry == weights.end()) {
          return invalid("{} holds tensor {}, which {} does not list", file->path(), name,
                         kIndexName);
        }
        if (entry->second != shard) {
          return invalid("{} holds tensor {}, which {} places in {}", file->path(), name,
                         kIndexName, entry->second);
        }
      }
      LK_RETURN_IF_ERROR(add(file->tensors(), file->path()));
      files.push_back(std::move(*file));
    }
    for (const auto& [name, shard] : weights) {
      if (!tensors.count(name)) {
        return invalid("{} places tensor {} in {}, which does not hold it", index_path, name,
                       shard);
      }
    }
    return {};
  }
};

Checkpoint::Checkpoint() : impl_(std::make_unique<Impl>()) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  Checkpoint checkpoint;
  Impl& impl = *checkpoint.impl_;
  impl.folder = folder;
  impl.has_data = true;
  LK_ASSIGN_OR_RETURN(impl.config, HfConfig::read(folder));
  const std::string single = folder + "/model.safetensors";
  const std::string index = folder + "/" + std::string(kIndexName);
  std::error_code ignored;
  if (std::filesystem::exists(single, ignored)) {
    LK_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(single));
    LK_RETURN_IF_ERROR(impl.add(file.tensors(), single));
    impl.files.push_back(std::move(file));
  } else if (std::filesystem::exists(index, ignored)) {
    LK_RETURN_IF_ERROR(impl.open_shards(index));
  } else {
    return fail(ErrorKind::kNotFound, "{} holds neither model.safetensors nor {}", folder,
                kIndexName);
  }
  return checkpoint;
}

Result<Checkpoint> Checkpoint::from_headers(const std::vector<std::string>& headers,
                                            HfConfig config) {
  Checkpoint checkpoint;
  Impl& impl = *checkpoint.impl_;
  impl.config = std::move(config);
  for (size_t i = 0; i < headers.size(); ++i) {
    const std::string what = fmt::format("header {}", i);
    LK_ASSIGN_OR_RETURN(SafetensorsHeader header,
                        parse_safetensors_header(headers[i], nullptr, kUnknownDataSize, what));
    LK_RETURN_IF_ERROR(impl.add(header.tensors, what));
  }
  return checkpoint;
}

const HfConfig& Checkpoint::config() const { return impl_->config; }
const std::string& Checkpoint::folder() const { return impl_->folder; }
const std::map<std::string, TensorView>& Checkpoint::tensors() const { return impl_->tensors; }
size_t Checkpoint::total_bytes() const { return impl_->total_bytes; }
bool Checkpoint::has_data() const { return impl_->has_data; }

const TensorView* Checkpoint::find(const std::string& name) const {
  const auto tensor = impl_->tensors.find(name);
  return tensor == impl_->tensors.end() ? nullptr : &tensor->second;
}

}  // namespace lk
