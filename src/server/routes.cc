#include "server/routes.h"

#include <algorithm>

#include "server/adapter_routes.h"
#include "server/api/endpoints.h"
#include "server/server_state.h"
#include "server/status_routes.h"

namespace lk {
namespace {

template <MakeAnswer kMake>
void generate(ServerState& state, std::shared_ptr<Exchange> exchange) {
  state.generations.start(std::move(exchange), kMake);
}

// Endpoints that only work on text; long bodies beside the loop.
template <ApiResult<std::string> (*kMake)(const OrderedJson&, const ServedModel&)>
void work_on_text(ServerState& state, std::shared_ptr<Exchange> exchange) {
  const auto work = [exchange, &served = state.served]() -> ApiResult<std::string> {
    const auto body = parse_body(exchange->request().body);
    if (!body) return tl::unexpected<ApiError>(body.error());
    return kMake(*body, served);
  };
  const auto show = [exchange](const ApiResult<std::string>& text) {
    if (!text) return reply_error(*exchange, text.error());
    exchange->reply(200, "application/json", *text);
  };
  if (exchange->request().body.size() <= state.options.generation.inline_body) return show(work());
  state.pool.post(
      [work, show, &loop = state.loop] { loop.post([show, text = work()] { show(text); }); });
}

void get_models(ServerState& state, std::shared_ptr<Exchange> exchange) {
  exchange->reply(200, "application/json", models_body(state.served, state.adapters.list()));
}

void get_model(ServerState& state, std::shared_ptr<Exchange> exchange) {
  const std::string name = exchange->request().path.substr(std::string_view("/v1/models/").size());
  const auto body = model_body(state.served, state.adapters.list(), name);
  if (!body) return reply_error(*exchange, body.error());
  exchange->reply(200, "application/json", *body);
}

constexpr bool kDraining = true;  // also while the server shuts down
constexpr Route kRoutes[] = {
    {"GET", "/health", Role::kOpen, get_health, kDraining},
    {"GET", "/ping", Role::kOpen, get_health, kDraining},
    {"POST", "/ping", Role::kOpen, get_health, kDraining},
    {"GET", "/ready", Role::kOpen, get_ready, kDraining},
    {"GET", "/version", Role::kOpen, get_version, kDraining},
    {"GET", "/metrics", Role::kOpen, get_metrics, kDraining},
    {"GET", "/load", Role::kOpen, get_load, kDraining},
    {"GET", "/v1/models", Role::kInfer, get_models, kDraining},
    {"GET", "/v1/models/*", Role::kInfer, get_model, kDraining},
    {"POST", "/v1/completions", Role::kInfer, generate<make_completion_answer>, false},
    {"POST", "/v1/chat/completions", Role::kInfer, generate<make_chat_answer>, false},
    {"POST", "/v1/responses", Role::kInfer, generate<make_response_answer>, false},
    {"POST", "/tokenize", Role::kInfer, work_on_text<tokenize_body>, false},
    {"POST", "/detokenize", Role::kInfer, work_on_text<detokenize_body>, false},
    {"POST", "/v1/load_lora_adapter", Role::kAdmin, load_lora_adapter, false},
    {"POST", "/v1/unload_lora_adapter", Role::kAdmin, unload_lora_adapter, false},
};

bool path_matches(const Route& route, std::string_view path) {
  if (!route.path.ends_with("/*")) return path == route.path;
  const std::string_view folder = route.path.substr(0, route.path.size() - 1);
  return path.starts_with(folder) && path.size() > folder.size();
}

bool method_matches(const Route& route, std::string_view method) {
  return method == route.method || (method == "HEAD" && route.method == "GET");
}

// The row of a request, or what is answered instead.
struct Found {
  const Route* route = nullptr;
  ApiError error;
  HttpHeaders headers;
};

Found refuse(int status, std::string message, std::string type, std::string code = {},
             HttpHeaders headers = {}) {
  return {nullptr,
          {.status = status,
           .message = std::move(message),
           .type = std::move(type),
           .code = std::move(code)},
          std::move(headers)};
}

bool is_route(std::string_view path) {
  return std::any_of(std::begin(kRoutes), std::end(kRoutes),
                     [path](const Route& route) { return path == route.path; });
}

// The path that was meant, where a base URL lacks its /v1, has it twice, or ends with a slash.
std::string meant_path(std::string path) {
  for (size_t at; (at = path.find("//")) != std::string::npos;) path.erase(at, 1);
  if (path.size() > 1 && path.back() == '/') path.pop_back();
  for (const std::string& near :
       {path, "/v1" + path, path.starts_with("/v1/") ? path.substr(3) : std::string()}) {
    if (is_route(near)) return near;
  }
  return {};
}

Found no_route(const std::string& path) {
  const std::string meant = path.size() < 256 ? meant_path(path) : std::string();
  return refuse(404,
                fmt::format("there is no path '{}' here{}", path,
                            meant.empty() ? "" : ", but there is " + meant),
                "not_found_error");
}

// One rule for every body: a client that does not say what it sends, sends JSON; parameters such as
// charset change nothing, as JSON is UTF-8.
bool may_be_json(std::string_view content_type) {
  std::string media(content_type.substr(0, content_type.find(';')));
  media.erase(media.find_last_not_of(" \t") + 1);
  std::transform(media.begin(), media.end(), media.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return media.empty() || media == "application/json";
}

Found find_route(const ServerState& state, const HttpRequest& request) {
  std::string allowed;
  const Route* found = nullptr;
  for (const Route& route : kRoutes) {
    if (!path_matches(route, request.path)) continue;
    if (method_matches(route, request.method)) found = &route;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  if (allowed.empty()) {
    return no_route(request.path);
  }
  if (found == nullptr) {
    return refuse(405, fmt::format("{} takes {}, not {}", request.path, allowed, request.method),
                  "invalid_request_error", "method_not_allowed", {{"allow", allowed}});
  }
  switch (check_access(state.options.keys, found->role, request.header("authorization"))) {
    case Access::kGranted:
      break;
    case Access::kUnauthorized:
      return refuse(401, "this path needs an API key: Authorization: Bearer KEY",
                    "authentication_error", "invalid_api_key", {{"www-authenticate", "Bearer"}});
    case Access::kForbidden:
      return refuse(403, "this path needs an admin API key", "permission_error");
  }
  if (state.draining && !found->when_draining) {
    return refuse(503, "the server is shutting down", "service_unavailable_error");
  }
  const std::string type = request.header("content-type");
  if (found->method == "POST" && found->role != Role::kOpen && !may_be_json(type)) {
    return refuse(415, fmt::format("Content-Type must be application/json or absent, not {}", type),
                  "invalid_request_error");
  }
  const std::string encoding = request.header("content-encoding");
  if (found->method == "POST" && !encoding.empty() && encoding != "identity") {
    return refuse(415, fmt::format("a body with Content-Encoding {} is not read", encoding),
                  "invalid_request_error", {}, {{"accept-encoding", "identity"}});
  }
  return {found, {}, {}};
}

bool is_preflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && request.headers.contains("origin") &&
         request.headers.contains("access-control-request-method");
}

// What a browser asks before a page of another origin may call: anything may, with any header.
void allow_cross_origin(Exchange& exchange) {
  HttpHeaders headers = {
      {"access-control-allow-methods", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"},
      {"access-control-max-age", "600"}};
  const std::string asked = exchange.request().header("access-control-request-headers");
  if (!asked.empty()) headers.emplace_back("access-control-allow-headers", asked);
  exchange.reply(200, "text/plain; charset=utf-8", "OK", std::move(headers));
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

void route(ServerState& state, std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  if (is_preflight(request)) return allow_cross_origin(*exchange);
  Found found = find_route(state, request);
  if (found.route == nullptr) {
    return reply_error(*exchange, found.error, std::move(found.headers));
  }
  found.route->handle(state, std::move(exchange));
}

bool accepts(const ServerState& state, const HttpRequest& request) {
  return is_preflight(request) || find_route(state, request).route != nullptr;
}

void reply_error(Exchange& exchange, const ApiError& error, HttpHeaders headers) {
  if (error.status == 503 || error.status == 429) headers.emplace_back("retry-after", "1");
  exchange.reply(error.status, "application/json", error_body(error), std::move(headers));
}

}  // namespace lk
