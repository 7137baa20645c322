// GET /v1/models.
#include <nlohmann/json.hpp>

#include "server/api/endpoints.h"
#include "server/api/json_text.h"

namespace lk {
namespace {

OrderedJson model_entry(const std::string& id, const std::string& root, OrderedJson parent,
                        int64_t created, int max_model_len) {
  return {{"id", id},
          {"object", "model"},
          {"created", created},
          {"owned_by", "lorikeet"},
          {"root", root},
          {"parent", std::move(parent)},
          {"max_model_len", max_model_len},
          {"permission", OrderedJson::array({{{"id", "modelperm-" + id},
                                              {"object", "model_permission"},
                                              {"created", created},
                                              {"allow_create_engine", false},
                                              {"allow_sampling", true},
                                              {"allow_logprobs", true},
                                              {"allow_search_indices", false},
                                              {"allow_view", true},
                                              {"allow_fine_tuning", false},
                                              {"organization", "*"},
                                              {"group", nullptr},
                                              {"is_blocking", false}}})}};
}

OrderedJson all_models(const ServedModel& served, const std::vector<AdapterStatus>& adapters) {
  OrderedJson list = OrderedJson::array();
  for (const std::string& name : served.names)
    list.push_back(model_entry(name, served.root, nullptr, served.created, served.max_model_len));
  const OrderedJson parent =
      served.names.empty() ? OrderedJson() : OrderedJson(served.names.front());
  for (const AdapterStatus& adapter : adapters)
    list.push_back(
        model_entry(adapter.name, adapter.path, parent, adapter.created, served.max_model_len));
  return list;
}

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

std::string models_body(const ServedModel& served, const std::vector<AdapterStatus>& adapters) {
  return dump({{"object", "list"}, {"data", all_models(served, adapters)}});
}

ApiResult<std::string> model_body(const ServedModel& served,
                                  const std::vector<AdapterStatus>& adapters,
                                  const std::string& name) {
  for (const OrderedJson& entry : all_models(served, adapters)) {
    if (entry["id"] == name) return dump(entry);
  }
  return tl::unexpected<ApiError>(model_not_found(name));
}

}  // namespace lk
