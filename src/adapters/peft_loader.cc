#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "adapters/adapter.h"
#include "adapters/adapter_build.h"
#include "adapters/adapter_config.h"
#include "adapters/adapter_plan.h"
#include "adapters/extra_tokens.h"
#include "base/mmap_file.h"
#include "checkpoint/safetensors_reader.h"

namespace lk {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

// kHidden: whether it is there cannot be seen, for want of permission or the like.
enum class PathKind { kNone, kHidden, kFile, kFolder };
PathKind path_kind(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return errno == ENOENT || errno == ENOTDIR ? PathKind::kNone : PathKind::kHidden;
  }
  return S_ISDIR(info.st_mode) ? PathKind::kFolder : PathKind::kFile;
}

}  // namespace

Status check_adapter_folder(const std::string& folder) {
  switch (path_kind(folder)) {
    case PathKind::kNone:
      return fail(ErrorKind::kNotFound, "the folder does not exist");
    case PathKind::kHidden:
      return invalid("cannot look at the folder: {}", std::strerror(errno));
    case PathKind::kFile:
      return invalid(
          "this is a file, expected a folder with adapter_config.json and "
          "adapter_model.safetensors");
    case PathKind::kFolder:
      break;
  }
  if (path_kind(folder + "/adapter_config.json") == PathKind::kNone) {
    return fail(ErrorKind::kNotFound, "the folder has no adapter_config.json");
  }
  if (path_kind(folder + "/adapter_model.safetensors") == PathKind::kNone) {
    if (path_kind(folder + "/adapter_model.bin") != PathKind::kNone) {
      return unsupported(
          "the folder has adapter_model.bin but no adapter_model.safetensors; pickles are not "
          "opened");
    }
    return fail(ErrorKind::kNotFound, "the folder has no adapter_model.safetensors");
  }
  return {};
}

namespace {

Result<std::shared_ptr<Adapter>> load(const std::string& folder, const LinearTable& table,
                                      const AdapterLoadOptions& options) {
  LK_RETURN_IF_ERROR(check_adapter_folder(folder));
  LK_ASSIGN_OR_RETURN(const std::string text,
                      read_file(folder + "/adapter_config.json", kMaxConfigBytes));
  LK_ASSIGN_OR_RETURN(const AdapterConfig config,
                      parse_adapter_config(text, "adapter_config.json"));
  LK_RETURN_IF_ERROR(check_extra_tokens(folder, table));
  LK_ASSIGN_OR_RETURN(const SafetensorsReader file,
                      SafetensorsReader::open(folder + "/adapter_model.safetensors"));
  const LinearIndex index(table);
  LK_ASSIGN_OR_RETURN(AdapterPlan plan, plan_adapter(config, file.tensors(), index, options));
  const auto read = [&file](const std::string& name, std::span<std::byte> out) {
    return file.read(name, out);
  };
  LK_ASSIGN_OR_RETURN(std::shared_ptr<Adapter> adapter, build_adapter(std::move(plan), read));
  LK_RETURN_IF_ERROR(file.check_unchanged());
  return adapter;
}

}  // namespace

Result<std::shared_ptr<const Adapter>> load_peft_adapter(const std::string& folder,
                                                         const std::string& name,
                                                         const LinearTable& table,
                                                         const AdapterLoadOptions& options) {
  Result<std::shared_ptr<Adapter>> adapter = load(folder, table, options);
  if (!adapter)
    return fail(adapter.error().kind, "adapter {}: {}", folder, adapter.error().message);
  (*adapter)->name = name;
  (*adapter)->path = folder;
  return std::shared_ptr<const Adapter>(std::move(*adapter));
}

}  // namespace lk
