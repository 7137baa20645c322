// What those who run a server see of it: metrics, logs, signals.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "tests/serve/server_process.h"

namespace lk {
namespace {

// Dashboards made for vLLM find their names, with their labels; adapters have series of their own.
TEST(Operations, MetricsHaveTheNamesOfDashboards) {
  ServerProcess server({"--lora-modules", "sql=" + adapter_path("sql")});
  ASSERT_TRUE(server.ready()) << server.log();
  const std::string base = server.client().get("/v1/models").json()["data"][0]["id"];
  for (const std::string& model : {base, std::string("sql")}) {
    const OrderedJson body = {{"model", model},   {"prompt", "Count the flights."},
                              {"max_tokens", 5},  {"ignore_eos", true},
                              {"temperature", 0}, {"n", 2}};
    ASSERT_EQ(server.client().post("/v1/completions", body).status, 200);
  }
  const std::map<std::string, double> all = server.metrics();
  const auto sum = [&](const std::string& name, const std::string& label) {
    int found = 0;
    double total = 0;
    for (const auto& [key, value] : all) {
      if (!key.starts_with(name + "{") || key.find(label) == std::string::npos) continue;
      EXPECT_NE(key.find("model_name=\"" + base + "\""), std::string::npos) << key;
      EXPECT_NE(key.find("engine=\""), std::string::npos) << key;
      ++found;
      total += value;
    }
    EXPECT_GT(found, 0) << name << " " << label;
    return total;
  };
  for (const char* name : {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                           "num_preemptions_total", "prefix_cache_queries_total",
                           "prefix_cache_hits_total", "prompt_tokens_cached_total"}) {
    sum(std::string("vllm:") + name, "");
  }
  EXPECT_EQ(sum("vllm:generation_tokens_total", ""), 20);
  EXPECT_GT(sum("vllm:prompt_tokens_total", ""), 0);
  EXPECT_EQ(sum("vllm:request_success_total", "finished_reason=\"length\""), 2);
  EXPECT_EQ(sum("vllm:cache_config_info", "block_size=\"16\""), 1);
  sum("vllm:lora_requests_info", "running_lora_adapters");
  for (const char* name :
       {"time_to_first_token_seconds", "inter_token_latency_seconds",
        "request_time_per_output_token_seconds", "e2e_request_latency_seconds",
        "request_queue_time_seconds", "request_inference_time_seconds",
        "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
        "request_prefill_kv_computed_tokens", "request_generation_tokens",
        "request_max_num_generation_tokens", "request_params_max_tokens", "request_params_n",
        "iteration_tokens_total"}) {
    EXPECT_GE(sum(std::string("vllm:") + name + "_count", ""), 2) << name;
  }
  EXPECT_EQ(sum("vllm:request_max_num_generation_tokens_sum", ""), 10);
  EXPECT_EQ(sum("vllm:request_params_n_sum", ""), 4);
  const std::string ours = "lora_name=\"sql\"";
  EXPECT_EQ(sum("lorikeet:lora_requests_total", ours), 1);
  EXPECT_EQ(sum("lorikeet:lora_generation_tokens_total", ours), 10);
  EXPECT_GT(sum("lorikeet:lora_prompt_tokens_total", ours), 0);
  EXPECT_EQ(sum("lorikeet:lora_time_to_first_token_seconds_count", ours), 2);
  EXPECT_EQ(sum("lorikeet:lora_inter_token_latency_seconds_count", ours), 8);
  EXPECT_GT(sum("lorikeet:lora_load_seconds", ours), 0);
  EXPECT_EQ(sum("lorikeet:lora_resident", ours), 1);
  EXPECT_GT(sum("lorikeet:lora_bytes", ours), 0);
}

TEST(Operations, LogsOfRequestsHoldNoPromptUnlessAsked) {
  const std::string secret = "PASSPHRASE-OF-NOBODY";
  for (const bool asked : {false, true}) {
    ServerProcess server({asked ? "--log-prompts" : "--log-requests"});
    ASSERT_TRUE(server.ready()) << server.log();
    const auto answer =
        server.client().post("/v1/completions", {{"prompt", secret}, {"max_tokens", 3}});
    ASSERT_EQ(answer.status, 200) << answer.body;
    const std::string id = answer.header("x-request-id");
    ASSERT_FALSE(id.empty());
    EXPECT_TRUE(comes_true(5, [&] {
      const std::string log = server.log();
      return log.find("id=" + id) != std::string::npos &&
             log.find("output_tokens=3") != std::string::npos;
    })) << server.log();
    EXPECT_EQ(server.log().find(secret) != std::string::npos, asked);
  }
}

TEST(Operations, ASecondInterruptKills) {
  ServerProcess server(std::vector<std::string>{});
  ASSERT_TRUE(server.ready()) << server.log();
  std::atomic<bool> started{false};
  std::thread client([&] {
    server.client(60).stream(
        "/v1/completions",
        {{"prompt", "Once"}, {"max_tokens", 100'000}, {"ignore_eos", true}, {"stream", true}},
        [&](const StreamAnswer&) { return started = true; });
  });
  EXPECT_TRUE(comes_true(10, [&] { return started.load(); }));
  server.signal(SIGINT);  // the stream goes on
  EXPECT_TRUE(
      comes_true(5, [&] { return server.log().find("drain_started") != std::string::npos; }));
  EXPECT_EQ(server.wait(0.3), -1);
  server.signal(SIGINT);
  EXPECT_EQ(server.wait(5), 130);
  client.join();
}

}  // namespace
}  // namespace lk
