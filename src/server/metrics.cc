#include "server/metrics.h"

#include <fmt/ranges.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <sstream>

namespace lk {
namespace {

using prometheus::ClientMetric;
using prometheus::Counter;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Label = ClientMetric::Label;
using Buckets = Histogram::BucketBoundaries;

// vLLM's buckets, so that its dashboards read ours.
const Buckets kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                             1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const Buckets kBetweenTokens = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const Buckets kRequest = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                          30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const Buckets kTokens = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                         1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
const Buckets kSamples = {1, 2, 5, 10, 20};

constexpr size_t kMostAdapterSeries = 512;
constexpr std::array kReasons = {"stop", "length", "abort", "error"};

struct AdapterSeries {
  Counter requests, prompt_tokens, output_tokens;
  Histogram first_token{kFirstToken}, between_tokens{kBetweenTokens};
  uint64_t last_used = 0;
};

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// Builds the families of one answer.
class Page {
 public:
  explicit Page(std::vector<Label> common) : common_(std::move(common)) {}

  void family(const std::string& name, const std::string& help, MetricType type) {
    families_.push_back({name, help, type, {}});
  }
  void add(ClientMetric metric, const std::vector<Label>& labels = {}) {
    metric.label = common_;
    metric.label.insert(metric.label.end(), labels.begin(), labels.end());
    families_.back().metric.push_back(std::move(metric));
  }
  void gauge(double value, const std::vector<Label>& labels = {}) {
    ClientMetric metric;
    metric.gauge.value = value;
    add(std::move(metric), labels);
  }
  void count(double value, const std::vector<Label>& labels = {}) {
    ClientMetric metric;
    metric.counter.value = value;
    add(std::move(metric), labels);
  }
  void one_gauge(const std::string& name, const std::string& help, double value) {
    family(name, help, MetricType::Gauge);
    gauge(value);
  }
  void one_count(const std::string& name, const std::string& help, double value) {
    family(name, help, MetricType::Counter);
    count(value);
  }
  void histogram(const std::string& name, const std::string& help, const Histogram& values) {
    family(name, help, MetricType::Histogram);
    add(values.Collect());
  }
  std::string text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families_);
    return out.str();
  }

 private:
  std::vector<Label> common_;
  std::vector<MetricFamily> families_;
};

}  // namespace

struct Metrics::Impl {
  MetricsLabels labels;
  Counter prompt_tokens, cached_tokens, output_tokens;
  std::array<Counter, kReasons.size()> ended;
  Histogram first_token{kFirstToken}, between_tokens{kBetweenTokens};
  Histogram per_token{kBetweenTokens}, whole{kRequest}, prefill{kRequest}, decode{kRequest};
  Histogram queue{kRequest}, inference{kRequest};
  Histogram prompt_sizes{kTokens}, computed_sizes{kTokens}, output_sizes{kTokens};
  Histogram longest_outputs{kTokens}, max_tokens{kTokens}, samples{kSamples};
  std::map<std::string, AdapterSeries> adapters;
  uint64_t uses = 0;

  AdapterSeries& series(const std::string& name) {
    const auto at = adapters.find(name);
    if (at == adapters.end() && adapters.size() >= kMostAdapterSeries) {
      auto oldest = adapters.begin();
      for (auto other = adapters.begin(); other != adapters.end(); ++other) {
        if (other->second.last_used < oldest->second.last_used) oldest = other;
      }
      adapters.erase(oldest);
    }
    AdapterSeries& found = at == adapters.end() ? adapters[name] : at->second;
    found.last_used = ++uses;
    return found;
  }

  void write_engine(Page& page, const EngineSnapshot& engine);
  void write_requests(Page& page);
  void write_adapters(Page& page, const std::vector<AdapterStatus>& known,
                      const AdapterStoreStats& store);
};

Metrics::Metrics(MetricsLabels labels) : impl_(std::make_unique<Impl>()) {
  impl_->labels = std::move(labels);
}
Metrics::~Metrics() = default;

void Metrics::on_token(const GenerationRecord& record, double gap, bool first) {
  Impl& m = *impl_;
  m.output_tokens.Increment();
  (first ? m.first_token : m.between_tokens).Observe(gap);
  if (record.base) return;
  AdapterSeries& adapter = m.series(record.model);
  adapter.output_tokens.Increment();
  (first ? adapter.first_token : adapter.between_tokens).Observe(gap);
}

void Metrics::on_end(const GenerationRecord& record) {
  Impl& m = *impl_;
  const std::chrono::steady_clock::time_point none;
  if (record.submitted == none) return;  // refused before it reached the engine
  for (size_t i = 0; i < kReasons.size(); ++i) {
    if (record.finish == kReasons[i]) m.ended[i].Increment();
  }
  m.prompt_tokens.Increment(static_cast<double>(record.prompt_tokens));
  m.cached_tokens.Increment(static_cast<double>(record.cached_tokens));
  m.whole.Observe(seconds(record.ended - record.arrived));
  if (record.queued >= 0) {
    m.queue.Observe(record.queued);
    m.inference.Observe(std::max(0.0, seconds(record.ended - record.submitted) - record.queued));
  }
  m.prompt_sizes.Observe(static_cast<double>(record.prompt_tokens));
  m.computed_sizes.Observe(static_cast<double>(record.prompt_tokens) -
                           static_cast<double>(record.cached_tokens));
  m.output_sizes.Observe(static_cast<double>(record.output_tokens));
  m.longest_outputs.Observe(static_cast<double>(record.longest_output));
  m.samples.Observe(record.samples);
  if (record.max_tokens >= 0) m.max_tokens.Observe(record.max_tokens);
  if (record.first_token != none) {
    const double decode = seconds(record.ended - record.first_token);
    m.prefill.Observe(seconds(record.first_token - record.submitted));
    m.decode.Observe(decode);
    if (record.output_tokens > 1) {
      m.per_token.Observe(decode / static_cast<double>(record.output_tokens - 1));
    }
  }
  if (record.base) return;
  AdapterSeries& adapter = m.series(record.model);
  adapter.requests.Increment();
  adapter.prompt_tokens.Increment(static_cast<double>(record.prompt_tokens));
}

namespace {

ClientMetric steps_by_tokens(const EngineStats& stats) {
  ClientMetric metric;
  uint64_t count = 0;
  for (size_t i = 0; i < stats.steps_by_tokens.size(); ++i) {
    const bool last = i == kStepTokenBounds.size();
    count += stats.steps_by_tokens[i];
    metric.histogram.bucket.push_back(
        {count, last ? std::numeric_limits<double>::infinity() : kStepTokenBounds[i]});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = static_cast<double>(stats.all_tokens);
  return metric;
}

// Names of the adapters with such requests, by commas.
std::string adapters_with(const EngineStats& stats, int AdapterLoad::*requests) {
  std::vector<std::string> names;
  for (const AdapterLoad& load : stats.adapters) {
    if (load.*requests > 0 && !load.name.empty()) names.push_back(load.name);
  }
  return fmt::format("{}", fmt::join(names, ","));
}

}  // namespace

void Metrics::Impl::write_engine(Page& page, const EngineSnapshot& engine) {
  const EngineStats& stats = engine.stats;
  page.one_gauge("vllm:num_requests_running", "Requests that are in the batch", stats.running);
  page.one_gauge("vllm:num_requests_waiting", "Requests that wait for the batch", stats.waiting);
  double used = 0;
  for (size_t i = 0; i < stats.free_blocks.size() && i < engine.total_blocks.size(); ++i) {
    if (engine.total_blocks[i] == 0) continue;
    used = std::max(used, 1 - static_cast<double>(stats.free_blocks[i]) / engine.total_blocks[i]);
  }
  page.one_gauge("vllm:kv_cache_usage_perc", "Share of the KV cache that is in use, 0 to 1", used);
  page.family("vllm:cache_config_info", "Sizes of the KV cache; the value is 1", MetricType::Gauge);
  const auto most_blocks = std::max_element(engine.total_blocks.begin(), engine.total_blocks.end());
  page.gauge(1, {{"block_size", std::to_string(kKvBlockTokens)},
                 {"num_gpu_blocks",
                  std::to_string(most_blocks == engine.total_blocks.end() ? 0 : *most_blocks)}});
  page.one_count("vllm:num_preemptions_total", "Requests put back for want of KV blocks",
                 static_cast<double>(stats.preemptions));
  page.one_count("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache",
                 static_cast<double>(stats.prefix.queries));
  page.one_count("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache",
                 static_cast<double>(stats.prefix.hits));
  page.one_count("lorikeet:engine_steps_total", "Forward passes", static_cast<double>(stats.steps));
  page.one_count("lorikeet:engine_forward_cpu_seconds_total",
                 "CPU time of the engine's thread in forward passes", stats.forward_cpu_seconds);
  page.family("vllm:iteration_tokens_total", "Tokens of a step", MetricType::Histogram);
  page.add(steps_by_tokens(stats));
  page.family("vllm:lora_requests_info",
              "Adapters with requests; the value is the time of this answer", MetricType::Gauge);
  page.gauge(
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
      {{"max_lora", std::to_string(labels.max_loras)},
       {"running_lora_adapters", adapters_with(stats, &AdapterLoad::running)},
       {"waiting_lora_adapters", adapters_with(stats, &AdapterLoad::waiting)}});
  page.one_gauge("lorikeet:engine_alive", "1 while the engine runs", engine.alive ? 1 : 0);
}

void Metrics::Impl::write_requests(Page& page) {
  page.one_count("vllm:prompt_tokens_total", "Prompt tokens of finished requests",
                 prompt_tokens.Value());
  page.one_count("vllm:prompt_tokens_cached_total", "Of those, taken from the prefix cache",
                 cached_tokens.Value());
  page.one_count("vllm:generation_tokens_total", "Tokens generated", output_tokens.Value());
  page.family("vllm:request_success_total", "Finished requests", MetricType::Counter);
  for (size_t i = 0; i < kReasons.size(); ++i) {
    page.count(ended[i].Value(), {{"finished_reason", kReasons[i]}});
  }
  page.histogram("vllm:time_to_first_token_seconds", "From arrival to the first token",
                 first_token);
  page.histogram("vllm:inter_token_latency_seconds", "Between two tokens of a request",
                 between_tokens);
  page.histogram("vllm:request_time_per_output_token_seconds", "Mean of a request", per_token);
  page.histogram("vllm:e2e_request_latency_seconds", "From arrival to the end", whole);
  page.histogram("vllm:request_queue_time_seconds", "From submission to the first step", queue);
  page.histogram("vllm:request_inference_time_seconds", "From the first step to the end",
                 inference);
  page.histogram("vllm:request_prefill_time_seconds", "From submission to the first token",
                 prefill);
  page.histogram("vllm:request_decode_time_seconds", "From the first token to the end", decode);
  page.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", prompt_sizes);
  page.histogram("vllm:request_generation_tokens", "Tokens generated for a request", output_sizes);
  page.histogram("vllm:request_prefill_kv_computed_tokens",
                 "Prompt tokens that were not taken from the prefix cache", computed_sizes);
  page.histogram("vllm:request_max_num_generation_tokens",
                 "Tokens of the longest answer to a request", longest_outputs);
  page.histogram("vllm:request_params_max_tokens", "max_tokens of a request", max_tokens);
  page.histogram("vllm:request_params_n", "Answers that a request asks for", samples);
}

void Metrics::Impl::write_adapters(Page& page, const std::vector<AdapterStatus>& known,
                                   const AdapterStoreStats& store) {
  std::set<std::string> names;
  for (const AdapterStatus& adapter : known) names.insert(adapter.name);
  std::erase_if(adapters, [&](const auto& entry) { return !names.contains(entry.first); });

  const auto by_status = [&](const std::string& name, const std::string& help,
                             double (*value)(const AdapterStatus&)) {
    page.family(name, help, MetricType::Gauge);
    for (const AdapterStatus& adapter : known) {
      page.gauge(value(adapter), {{"lora_name", adapter.name}});
    }
  };
  by_status("lorikeet:lora_requests_in_use", "Requests that hold a version of the adapter",
            [](const AdapterStatus& a) { return static_cast<double>(a.in_use); });
  by_status("lorikeet:lora_resident", "1 if the adapter is in memory",
            [](const AdapterStatus& a) { return a.resident ? 1.0 : 0.0; });
  by_status("lorikeet:lora_bytes", "Memory that the adapter takes",
            [](const AdapterStatus& a) { return static_cast<double>(a.bytes); });
  by_status("lorikeet:lora_load_seconds", "Time that its last load took",
            [](const AdapterStatus& a) { return a.load_seconds; });

  const auto by_series = [&](const std::string& name, const std::string& help, MetricType type,
                             ClientMetric (*value)(const AdapterSeries&)) {
    page.family(name, help, type);
    for (const auto& [adapter, series] : adapters) {
      page.add(value(series), {{"lora_name", adapter}});
    }
  };
  by_series("lorikeet:lora_requests_total", "Finished requests of the adapter", MetricType::Counter,
            [](const AdapterSeries& s) { return s.requests.Collect(); });
  by_series("lorikeet:lora_prompt_tokens_total", "Prompt tokens of those", MetricType::Counter,
            [](const AdapterSeries& s) { return s.prompt_tokens.Collect(); });
  by_series("lorikeet:lora_generation_tokens_total", "Tokens generated with the adapter",
            MetricType::Counter, [](const AdapterSeries& s) { return s.output_tokens.Collect(); });
  by_series("lorikeet:lora_time_to_first_token_seconds", "From arrival to the first token",
            MetricType::Histogram, [](const AdapterSeries& s) { return s.first_token.Collect(); });
  by_series("lorikeet:lora_inter_token_latency_seconds", "Between two tokens of a request",
            MetricType::Histogram,
            [](const AdapterSeries& s) { return s.between_tokens.Collect(); });

  page.one_gauge("lorikeet:loras_resident", "Adapters in memory", store.resident);
  page.one_gauge("lorikeet:loras_resident_bytes", "Memory that they take",
                 static_cast<double>(store.resident_bytes));
  page.one_count("lorikeet:lora_loads_total", "Loads from disk", static_cast<double>(store.loads));
  page.one_count("lorikeet:lora_load_failures_total", "Loads that failed",
                 static_cast<double>(store.failed_loads));
  page.one_count("lorikeet:lora_evictions_total", "Adapters taken out of memory",
                 static_cast<double>(store.evictions));
  page.one_count("lorikeet:lora_hits_total", "Requests whose adapter was in memory",
                 static_cast<double>(store.hits));
}

std::string Metrics::text(const EngineSnapshot& engine, const std::vector<AdapterStatus>& adapters,
                          const AdapterStoreStats& store, const HttpCounters& http) {
  Page page({{"model_name", impl_->labels.model_name}, {"engine", "0"}});
  impl_->write_engine(page, engine);
  impl_->write_requests(page);
  impl_->write_adapters(page, adapters, store);
  page.one_gauge("lorikeet:http_connections", "Open connections",
                 static_cast<double>(http.connections));
  page.one_gauge("lorikeet:http_exchanges", "HTTP requests that are being answered",
                 static_cast<double>(http.exchanges));
  page.one_count("lorikeet:http_connections_total", "Connections accepted",
                 static_cast<double>(http.accepted));
  page.one_count("lorikeet:http_accept_retries_total", "Times that no connection could be accepted",
                 static_cast<double>(http.accept_retries));
  return page.text();
}

}  // namespace lk
