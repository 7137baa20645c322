#include "server/adapter_routes.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hub/resolve.h"
#include "server/api/endpoints.h"
#include "server/event_log.h"

namespace lk {
namespace {

constexpr size_t kLongestName = 256;

struct LoadRequest {
  std::string name, path;
  bool in_place = false;
};

ApiError user_error(std::string message, std::string param = {}) {
  return {.status = 400,
          .message = std::move(message),
          .type = "InvalidUserInput",
          .param = std::move(param)};
}

// The string under `key`, empty if it is absent or null.
ApiResult<std::string> read_string(const OrderedJson& body, const char* key) {
  const auto at = body.find(key);
  if (at == body.end() || at->is_null()) return std::string();
  if (!at->is_string()) {
    return tl::unexpected<ApiError>(user_error(fmt::format("{} must be a string", key), key));
  }
  return at->get<std::string>();
}

// What both calls begin with: may it be done at all, and to which name.
ApiResult<OrderedJson> read_call(const ServerState& state, const Exchange& exchange) {
  if (!state.options.allow_runtime_lora) {
    return tl::unexpected<ApiError>(ApiError{
        .status = 403,
        .message = "adapters cannot be loaded or unloaded while this server runs: start it "
                   "with --allow-runtime-lora to allow that",
        .type = "permission_error"});
  }
  return parse_body(exchange.request().body);
}

ApiResult<std::string> read_name(const ServerState& state, const OrderedJson& body) {
  auto name = read_string(body, "lora_name");
  if (!name) return name;
  const auto refuse = [](std::string why) {
    return tl::unexpected<ApiError>(user_error(std::move(why), "lora_name"));
  };
  if (name->empty()) return refuse("'lora_name' must be provided");
  if (name->size() > kLongestName) {
    return refuse(fmt::format("lora_name is longer than {} bytes", kLongestName));
  }
  if (std::any_of(name->begin(), name->end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
    return refuse("lora_name contains control characters");
  }
  if (state.served.is_base(*name)) {
    return refuse(fmt::format("'{}' is the base model's name", *name));
  }
  return name;
}

ApiResult<LoadRequest> read_load(const ServerState& state, const OrderedJson& body) {
  LoadRequest load;
  auto name = read_name(state, body);
  if (!name) return tl::unexpected<ApiError>(name.error());
  load.name = std::move(*name);
  auto path = read_string(body, "lora_path");
  if (!path) return tl::unexpected<ApiError>(path.error());
  if (path->empty()) {
    return tl::unexpected<ApiError>(user_error("'lora_path' must be provided", "lora_path"));
  }
  load.path = std::move(*path);
  const auto in_place = body.find("load_inplace");
  if (in_place != body.end() && !in_place->is_null()) {
    if (!in_place->is_boolean()) {
      return tl::unexpected<ApiError>(
          user_error("load_inplace must be true or false", "load_inplace"));
    }
    load.in_place = in_place->get<bool>();
  }
  return load;
}

ApiError load_error(const LoadRequest& load, const Error& error) {
  ApiError told = api_error(error);
  told.message = fmt::format("Loading lora {} failed: {}", load.name, error.message);
  if (told.status == 404) told.type = "NotFoundError";
  return told;
}

void refuse_load(ServerState& state, Exchange& exchange, const std::string& name,
                 const ApiError& error) {
  state.events.on_refused_load(exchange.id(), name, error);
  reply_error(exchange, error);
}

void load_folder(ServerState& state, const std::shared_ptr<Exchange>& exchange,
                 const LoadRequest& load, const std::string& folder) {
  state.adapters.load(
      load.name, folder, load.in_place,
      [exchange, load, &state, &loop = state.loop](Result<AdapterStore::Adapters> done) {
        loop.post([exchange, load, &state, done = std::move(done)] {
          if (!done)
            return refuse_load(state, *exchange, load.name, load_error(load, done.error()));
          exchange->reply(200, "text/plain; charset=utf-8",
                          fmt::format("Success: LoRA adapter '{}' added successfully.", load.name));
        });
      });
}

bool name_taken(const ServerState& state, const std::string& name) {
  const auto known = state.adapters.list();
  return std::any_of(known.begin(), known.end(),
                     [&](const AdapterStatus& adapter) { return adapter.name == name; });
}

}  // namespace

void load_lora_adapter(ServerState& state, std::shared_ptr<Exchange> exchange) {
  const auto body = read_call(state, *exchange);
  if (!body) return reply_error(*exchange, body.error());
  const auto load = read_load(state, *body);
  if (!load) return reply_error(*exchange, load.error());
  if (!load->in_place && name_taken(state, load->name)) {
    return refuse_load(
        state, *exchange, load->name,
        user_error(fmt::format("The lora adapter '{}' has already been loaded. If you want to load "
                               "the adapter in place, set 'load_inplace' to True.",
                               load->name),
                   "lora_name"));
  }
  const auto path = check_adapter_path(state.options.paths, load->path);
  if (!path) {
    ApiError error = path.error();
    error.message = fmt::format("Loading lora {} failed: {}", load->name, error.message);
    if (error.status == 404) error.type = "NotFoundError";
    return refuse_load(state, *exchange, load->name, error);
  }
  if (path->hub_id.empty()) return load_folder(state, exchange, *load, path->folder);
  state.downloads.post([&state, exchange, load = *load, id = path->hub_id] {
    ResolveOptions options;
    options.cancelled = [&state] { return state.stopping.load(); };
    auto folder = resolve_adapter(id, "", options);
    state.loop.post([&state, exchange, load, folder = std::move(folder)] {
      if (!folder)
        return refuse_load(state, *exchange, load.name, load_error(load, folder.error()));
      load_folder(state, exchange, load, *folder);
    });
  });
}

void unload_lora_adapter(ServerState& state, std::shared_ptr<Exchange> exchange) {
  const auto body = read_call(state, *exchange);
  if (!body) return reply_error(*exchange, body.error());
  const auto name = read_name(state, *body);
  if (!name) return reply_error(*exchange, name.error());
  if (!state.adapters.unload(*name)) {
    return reply_error(*exchange,
                       {.status = 404,
                        .message = fmt::format("The lora adapter '{}' cannot be found.", *name),
                        .type = "NotFoundError",
                        .param = "lora_name"});
  }
  exchange->reply(200, "text/plain; charset=utf-8",
                  fmt::format("Success: LoRA adapter '{}' removed successfully.", *name));
}

}  // namespace lk
