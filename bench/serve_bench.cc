// The whole server under a closed-loop load: C clients that stream N tokens each, on the base, on
// one adapter, and each on an adapter of its own, the three alternating in one run. Prints token
// rate, time to first token, gaps, and CPU time outside the forward pass by thread.
// Usage: serve_bench MODEL ADAPTER_PREFIX [--clients C] [--tokens N] [--prompt P] [--rounds R] [--
// SERVE FLAGS]; adapters are ADAPTER_PREFIX0 ... (as made by `lorikeet synth`), MODEL "tiny" is the
// small model with rotated copies of its sql adapter.
#include <algorithm>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>

#include "bench/arguments.h"
#include "tests/serve/server_process.h"

namespace {

using namespace lk;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string model, adapters;
  int clients = 8, tokens = 64, prompt = 64, rounds = 3;
  std::vector<std::string> flags;
};

struct LoadResult {
  double tokens_per_second = 0;
  std::vector<double> first, gaps;  // seconds
  double outside_us = 0;            // CPU microseconds a token outside the forward pass
  int lost = 0;
};

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const size_t at =
      std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

// CPU seconds spent outside the forward pass: all threads but the pool's workers, less what the
// engine's thread spent in it.
double outside_seconds(const ServerProcess& server) {
  double sum = 0;
  for (const auto& [name, seconds] : server.thread_cpu_seconds()) {
    if (name != "lk-worker") sum += seconds;
  }
  return sum - server.metric("lorikeet:engine_forward_cpu_seconds_total");
}

// `models[i]` is asked by client i.
LoadResult load(const ServerProcess& server, const Settings& settings,
                const std::vector<std::string>& models, unsigned seed) {
  LoadResult result;
  std::mutex mutex;
  std::vector<std::thread> clients;
  const double cpu = outside_seconds(server);
  const auto begin = Clock::now();
  for (size_t i = 0; i < models.size(); ++i) {
    clients.emplace_back([&, i] {
      std::mt19937 random(seed * 997 + static_cast<unsigned>(i));
      std::vector<int> prompt(static_cast<size_t>(settings.prompt));
      for (int& id : prompt) id = static_cast<int>(random() % 200);
      const OrderedJson body = {
          {"model", models[i]}, {"prompt", prompt}, {"max_tokens", settings.tokens},
          {"temperature", 1},   {"seed", i},        {"ignore_eos", true},
          {"stream", true}};
      const auto start = Clock::now();
      const StreamAnswer answer = server.client(600).stream("/v1/completions", body);
      const std::lock_guard lock(mutex);
      if (!answer.done || answer.events.empty()) {
        ++result.lost;
        return;
      }
      const auto seconds = [](auto from, auto to) {
        return std::chrono::duration<double>(to - from).count();
      };
      result.first.push_back(seconds(start, answer.events.front().at));
      for (size_t e = 1; e < answer.events.size(); ++e)
        result.gaps.push_back(seconds(answer.events[e - 1].at, answer.events[e].at));
    });
  }
  for (std::thread& client : clients) client.join();
  const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
  const double tokens = static_cast<double>(settings.tokens) * static_cast<double>(models.size());
  result.tokens_per_second = tokens / wall;
  result.outside_us = (outside_seconds(server) - cpu) / tokens * 1e6;
  return result;
}

Settings parse(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("serve_bench",
                             "MODEL|tiny [ADAPTER_PREFIX] [--clients C] [--tokens N] [--prompt P] "
                             "[--rounds R] [-- SERVE FLAGS]");
  arguments.number("--clients", settings.clients, 1, 10'000);
  arguments.number("--tokens", settings.tokens, 1, 10'000'000);
  arguments.number("--prompt", settings.prompt, 1, 10'000'000);
  arguments.number("--rounds", settings.rounds, 1, 100'000);
  const std::vector<std::string> names = arguments.parse(argc, argv, 1, 2, &settings.flags);
  settings.model = names[0];
  settings.adapters = names.size() > 1 ? names[1] : "";
  if (settings.model == "tiny") {
    settings.model = std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4";
    settings.adapters = temporary_folder() + "/adapter";
    for (int i = 0; i < 8; ++i) {
      rotate_adapter(settings.model + "/adapters/sql", settings.adapters + std::to_string(i), i);
    }
  }
  return settings;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  constexpr int kAdapters = 8;
  std::vector<std::string> flags = settings.flags;
  if (!settings.adapters.empty()) {
    flags.push_back("--lora-modules");
    for (int i = 0; i < kAdapters; ++i)
      flags.push_back("a" + std::to_string(i) + "=" + settings.adapters + std::to_string(i));
  }
  const auto begin = Clock::now();
  ServerProcess server(std::string(LK_BINARY_DIR) + "/bin/lorikeet", settings.model, flags, 600);
  if (!server.ready()) {
    std::fprintf(stderr, "serve_bench: the server did not start:\n%s\n", server.log().c_str());
    return 1;
  }
  std::printf("ready after %.2f s\n", std::chrono::duration<double>(Clock::now() - begin).count());
  const std::string base = server.client().get("/v1/models").json()["data"][0]["id"];
  const auto count = static_cast<size_t>(settings.clients);
  std::vector<std::pair<std::string, std::vector<std::string>>> modes = {
      {"base", std::vector<std::string>(count, base)}};
  if (!settings.adapters.empty()) {
    modes.emplace_back("one adapter", std::vector<std::string>(count, "a0"));
    modes.emplace_back("eight adapters", std::vector<std::string>());
    for (int i = 0; i < settings.clients; ++i)
      modes.back().second.push_back("a" + std::to_string(i % kAdapters));
  }
  std::vector<std::vector<LoadResult>> results(modes.size());
  for (int round = -1; round < settings.rounds; ++round) {  // the first one warms up
    for (size_t m = 0; m < modes.size(); ++m) {
      LoadResult result = load(server, settings, modes[m].second,
                               static_cast<unsigned>(round * 16 + static_cast<int>(m) + 100));
      if (round >= 0) results[m].push_back(std::move(result));
    }
  }
  std::printf("%d clients, %d prompt tokens, %d tokens each, %d rounds, medians\n",
              settings.clients, settings.prompt, settings.tokens, settings.rounds);
  std::printf("%-15s %9s %8s %12s %12s %10s %10s %12s %5s\n", "", "tok/s", "of base",
              "first p50 ms", "first p99 ms", "gap p50 ms", "gap p99 ms", "outside us/t", "lost");
  double base_rate = 0;
  for (size_t m = 0; m < modes.size(); ++m) {
    std::vector<double> rates, outside, first, gaps;
    int lost = 0;
    for (const LoadResult& result : results[m]) {
      rates.push_back(result.tokens_per_second);
      outside.push_back(result.outside_us);
      first.insert(first.end(), result.first.begin(), result.first.end());
      gaps.insert(gaps.end(), result.gaps.begin(), result.gaps.end());
      lost += result.lost;
    }
    const double rate = quantile(rates, 0.5);
    if (m == 0) base_rate = rate;
    std::printf("%-15s %9.1f %7.1f%% %12.1f %12.1f %10.2f %10.2f %12.1f %5d\n",
                modes[m].first.c_str(), rate, 100 * rate / base_rate, quantile(first, 0.5) * 1e3,
                quantile(first, 0.99) * 1e3, quantile(gaps, 0.5) * 1e3, quantile(gaps, 0.99) * 1e3,
                quantile(outside, 0.5), lost);
  }
  std::printf("CPU seconds by thread:");
  for (const auto& [name, seconds] : server.thread_cpu_seconds())
    std::printf(" %s %.2f", name.c_str(), seconds);
  std::printf(" (forward passes on lk-engine %.2f)\n",
              server.metric("lorikeet:engine_forward_cpu_seconds_total"));
  std::printf("peak memory %.2f GB\n", static_cast<double>(server.peak_bytes()) * 1e-9);
  return 0;
}
