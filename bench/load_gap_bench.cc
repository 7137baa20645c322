// What running streams notice of adapters being loaded: C clients stream without end while phases
// of quiet and of loading 32 adapters follow each other. Prints the 99th percentile of the gaps
// between tokens in both, and the median of the ratios of neighbouring phases, since the machine
// drifts. Usage: load_gap_bench MODEL ADAPTER_PREFIX [--clients C] [--rounds R] [--loads N] [--
// SERVE FLAGS]; MODEL "tiny" is the small model with rotated copies of its sql adapter.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <thread>

#include "bench/arguments.h"
#include "tests/serve/server_process.h"

namespace {

using namespace lk;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string model, adapters;
  int clients = 8, rounds = 7, loads = 32;
  std::vector<std::string> flags;
};

Settings parse(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("load_gap_bench",
                             "MODEL ADAPTER_PREFIX | tiny [--clients C] [--rounds R] [--loads N] "
                             "[-- SERVE FLAGS]");
  arguments.number("--clients", settings.clients, 1, 10'000);
  arguments.number("--rounds", settings.rounds, 1, 100'000);
  arguments.number("--loads", settings.loads, 1, 100'000);
  const std::vector<std::string> names = arguments.parse(argc, argv, 1, 2, &settings.flags);
  if (names[0] != "tiny" && names.size() < 2)
    arguments.die("give a model folder and a prefix of adapters, or tiny");
  settings.model = names[0];
  if (settings.model == "tiny") {
    settings.model = std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4";
    settings.adapters = temporary_folder() + "/adapter";
    for (int i = 0; i < settings.loads; ++i)
      rotate_adapter(settings.model + "/adapters/sql", settings.adapters + std::to_string(i), i);
  } else {
    settings.adapters = names[1];
  }
  return settings;
}

// Gaps between the tokens of all clients since the last call of `take`.
class Gaps {
 public:
  void add(double seconds) {
    const std::lock_guard lock(mutex_);
    gaps_.push_back(seconds);
  }
  std::vector<double> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(gaps_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<double> gaps_;
};

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(q * static_cast<double>(values.size())))];
}

void stream_until(const ServerProcess& server, const std::atomic<bool>& stop, Gaps& gaps,
                  int client) {
  while (!stop) {
    const OrderedJson body = {{"prompt", "Once"}, {"max_tokens", 400},  {"temperature", 1},
                              {"seed", client},   {"ignore_eos", true}, {"stream", true}};
    Clock::time_point last{};
    server.client(600).stream("/v1/completions", body, [&](const StreamAnswer& answer) {
      const Clock::time_point now = answer.events.back().at;
      if (last != Clock::time_point()) gaps.add(std::chrono::duration<double>(now - last).count());
      last = now;
      return !stop.load();
    });
  }
}

// Loads all of them, or forgets them; false if a call failed.
bool load_all(const ServerProcess& server, const Settings& settings, bool load) {
  HttpClient client = server.client(600);
  bool good = true;
  for (int i = 0; i < settings.loads; ++i) {
    OrderedJson body = {{"lora_name", "a" + std::to_string(i)}};
    if (load) body["lora_path"] = settings.adapters + std::to_string(i);
    const auto answer =
        client.post(load ? "/v1/load_lora_adapter" : "/v1/unload_lora_adapter", body);
    if (answer.status != 200) std::fprintf(stderr, "%s\n", answer.body.c_str());
    good &= answer.status == 200;
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  std::vector<std::string> flags = settings.flags;
  flags.insert(flags.end(), {"--allow-runtime-lora", "--lora-root",
                             settings.adapters.substr(0, settings.adapters.rfind('/'))});
  ServerProcess server(std::string(LK_BINARY_DIR) + "/bin/lorikeet", settings.model, flags, 600);
  if (!server.ready()) {
    std::fprintf(stderr, "load_gap_bench: the server did not start:\n%s\n", server.log().c_str());
    return 1;
  }
  std::atomic<bool> stop = false;
  Gaps gaps;
  std::vector<std::thread> clients;
  for (int i = 0; i < settings.clients; ++i)
    clients.emplace_back([&, i] { stream_until(server, stop, gaps, i); });
  std::this_thread::sleep_for(std::chrono::seconds(2));
  gaps.take();

  std::vector<double> quiet_p99, loading_p99, ratios, load_seconds;
  bool good = true;
  for (int round = -1; round < settings.rounds && good; ++round) {  // the first one warms up
    const auto begin = Clock::now();
    good &= load_all(server, settings, true);
    const auto took = Clock::now() - begin;
    const double loading = quantile(gaps.take(), 0.99);
    good &= load_all(server, settings, false);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    gaps.take();
    std::this_thread::sleep_for(std::max<Clock::duration>(took, std::chrono::seconds(1)));
    const double quiet = quantile(gaps.take(), 0.99);
    if (round < 0) continue;
    quiet_p99.push_back(quiet);
    loading_p99.push_back(loading);
    ratios.push_back(loading / quiet);
    load_seconds.push_back(std::chrono::duration<double>(took).count());
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  std::printf("%d streams, %d rounds of loading %d adapters (%.2f s), medians\n", settings.clients,
              settings.rounds, settings.loads, quantile(load_seconds, 0.5));
  std::printf("gap p99: quiet %.2f ms, loading %.2f ms; ratio %.2f (%.2f to %.2f)\n",
              quantile(quiet_p99, 0.5) * 1e3, quantile(loading_p99, 0.5) * 1e3,
              quantile(ratios, 0.5), quantile(ratios, 0), quantile(ratios, 1));
  return good ? 0 : 1;
}
