// What /metrics tells, in Prometheus's text format: vLLM's names, and what each adapter does. Used
// on the loop's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/adapter_store.h"
#include "engine/engine_service.h"
#include "server/generation.h"
#include "server/http/http_server.h"

namespace lk {

struct MetricsLabels {
  std::string model_name;  // of the base
  int max_loras = 0;
};

class Metrics : public GenerationObserver {
 public:
  explicit Metrics(MetricsLabels labels);
  ~Metrics() override;

  void on_token(const GenerationRecord& record, double gap, bool first) override;
  void on_end(const GenerationRecord& record) override;

  // Series of adapters that the store no longer knows are dropped.
  std::string text(const EngineSnapshot& engine, const std::vector<AdapterStatus>& adapters,
                   const AdapterStoreStats& store, const HttpCounters& http);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lk
