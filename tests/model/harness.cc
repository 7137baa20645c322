#include "tests/model/harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <stdexcept>

#include "base/check.h"
#include "base/numeric.h"
#include "kernels/devices.h"
#include "model/archs.h"
#include "model/load.h"
#include "tests/model/batch_arrays.h"

namespace lk::test {
namespace {

using Random = std::mt19937_64;

int pick(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

// The blocks of one KV group: handed out at random, given back once the window has passed them.
class GroupBlocks {
 public:
  GroupBlocks(const KvGroup& group, const std::vector<Sequence>& sequences, Random& random)
      : window_(group.window), held_(sequences.size()) {
    for (const Sequence& s : sequences) {
      total_ += static_cast<int>(s.tokens.size() + kKvBlockTokens - 1) / kKvBlockTokens;
    }
    free_.resize(total_);
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), random);
  }

  int total() const { return total_; }
  const std::vector<int32_t>& held(int sequence) const { return held_[sequence]; }

  // Makes room for positions [begin, end) of a sequence and frees what none of them sees.
  void advance(int sequence, int begin, int end) {
    std::vector<int32_t>& held = held_[sequence];
    while (static_cast<int>(held.size()) * kKvBlockTokens < end) {
      held.push_back(free_.back());
      free_.pop_back();
    }
    if (window_ == 0) return;
    for (int i = 0; (i + 1) * kKvBlockTokens <= begin - window_ + 1; ++i) {
      if (held[i] < 0) continue;
      free_.insert(free_.begin(), held[i]);
      held[i] = -1;
    }
  }

 private:
  int window_;
  int total_ = 0;
  std::vector<int32_t> free_;
  std::vector<std::vector<int32_t>> held_;
};

struct Chunk {
  int sequence, begin, end;
};

// One step's arrays behind a Batch.
struct Step : BatchArrays {
  std::vector<std::vector<int32_t>> tables;  // by KV group
  std::vector<std::vector<int64_t>> slot_mapping;

  Step(const std::vector<Sequence>& sequences, const std::vector<Chunk>& chunks,
       std::vector<GroupBlocks>& groups, const std::vector<int32_t>& state_slots) {
    query_start.push_back(0);
    for (size_t s = 0; s < chunks.size(); ++s) {
      const Chunk& chunk = chunks[s];
      const Sequence& from = sequences[chunk.sequence];
      for (int p = chunk.begin; p < chunk.end; ++p) {
        rows.push_back(static_cast<int32_t>(ids.size()));
        ids.push_back(from.tokens[p]);
        positions.push_back(p);
        adapter.push_back(from.slot);
        sequence.push_back(static_cast<int32_t>(s));
      }
      query_start.push_back(static_cast<int32_t>(ids.size()));
      context.push_back(chunk.end);
      states.push_back(state_slots[chunk.sequence]);
      for (GroupBlocks& group : groups) group.advance(chunk.sequence, chunk.begin, chunk.end);
    }
    for (GroupBlocks& group : groups) add_group(chunks, group);
    for (size_t g = 0; g < groups.size(); ++g) {
      const int max_blocks = static_cast<int>(tables[g].size() / chunks.size());
      kv.push_back({tables[g].data(), slot_mapping[g].data(), max_blocks});
    }
  }

 private:
  void add_group(const std::vector<Chunk>& chunks, const GroupBlocks& group) {
    size_t max_blocks = 0;
    for (const Chunk& c : chunks) max_blocks = std::max(max_blocks, group.held(c.sequence).size());
    std::vector<int32_t>& table = tables.emplace_back(chunks.size() * max_blocks, -1);
    std::vector<int64_t>& slots = slot_mapping.emplace_back();
    for (size_t s = 0; s < chunks.size(); ++s) {
      const std::vector<int32_t>& held = group.held(chunks[s].sequence);
      std::copy(held.begin(), held.end(), table.begin() + s * max_blocks);
      for (int p = chunks[s].begin; p < chunks[s].end; ++p) {
        slots.push_back(int64_t{held[p / kKvBlockTokens]} * kKvBlockTokens + p % kKvBlockTokens);
      }
    }
  }
};

// What an earlier owner may have left in a block: finite, but far from any real value. States are
// never read before they are written.
void fill_with_garbage(KvCache& cache, Device& device, Random& random) {
  const KvLayout& layout = cache.layout();
  const auto put = [&device](void* to, const auto& values) {
    device.upload(to, values.data(), values.size() * sizeof(values[0]));
  };
  for (size_t l = 0; l < layout.layer_group.size(); ++l) {
    const KvLayer layer = cache.layer(static_cast<int>(l));
    const int64_t count =
        int64_t{cache.blocks(layer.group)} * layout.kv_heads * layout.head_dim * kKvBlockTokens;
    const float seed = static_cast<float>(pick(random, 50, 90));
    for (void* half : {layer.keys, layer.values}) {
      std::vector<float> values(count);
      for (int64_t i = 0; i < count; ++i)
        values[i] = (i % 2 ? seed : -seed) + static_cast<float>(i % 7);
      std::vector<uint16_t> rounded(count);
      std::transform(values.begin(), values.end(), rounded.begin(), f32_to_bf16);
      if (layer.type == KvType::kF32)
        put(half, values);
      else
        put(half, rounded);
    }
  }
  for (size_t l = 0; l < layout.states.size(); ++l) {
    const StateLayer layer = cache.state(static_cast<int>(l));
    put(layer.conv, std::vector<float>(layout.states[l].conv * cache.state_slots(), NAN));
    put(layer.state, std::vector<float>(layout.states[l].state * cache.state_slots(), NAN));
  }
}

// Random chunks of the sequences that are not done, in random order; everything that is left if
// `last`.
std::vector<Chunk> choose_chunks(const std::vector<Sequence>& sequences, std::vector<int>& done,
                                 bool one_token, bool last, Random& random) {
  std::vector<Chunk> chunks;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int left = static_cast<int>(sequences[s].tokens.size()) - done[s];
    if (left == 0) continue;
    int take = left;
    if (one_token) {
      take = 1;
    } else if (!last) {
      const int kind = pick(random, 0, 3);
      take = kind == 0 ? 0 : kind == 1 ? 1 : pick(random, 1, left);
    }
    if (take == 0) continue;
    chunks.push_back({static_cast<int>(s), done[s], done[s] + take});
    done[s] += take;
  }
  std::shuffle(chunks.begin(), chunks.end(), random);
  return chunks;
}

// A file's text, or that of its compressed form.
std::string reference_text(const std::string& path) {
  if (std::ifstream file(path); file)
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  FILE* pipe = popen(("xz -dc '" + path + ".xz'").c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot run xz");
  std::string text;
  char piece[1 << 14];
  while (const size_t count = std::fread(piece, 1, sizeof piece, pipe)) text.append(piece, count);
  if (pclose(pipe) != 0) throw std::runtime_error("cannot read " + path);
  return text;
}

}  // namespace

const Fixture& tiny_gpt_oss() {
  static const Fixture fixture{std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4",
                               {"sql", "json", "math"}};
  return fixture;
}

Fixture hybrid_model(const std::string& name) {
  return {std::string(LK_SOURCE_DIR) + "/models/" + name, {"sql", "json"}};
}

Fixture small_model(const std::string& name) {
  // NAME-FORMAT is NAME quantized, with the same adapters; hybrid models have one for all they are
  // made of.
  const std::string models = std::string(LK_SOURCE_DIR) + "/tests/data/models/";
  const bool hybrid = name == "qwen3_5_moe" || name == "nemotron_h";
  return {.folder = models + name,
          .adapters = hybrid ? std::vector<std::string>{"all"}
                             : std::vector<std::string>{"attention", "experts", "all"},
          .adapter_root = models + name.substr(0, name.find('-')) + "/adapters"};
}

std::string model_folder() { return tiny_gpt_oss().folder; }

std::unique_ptr<Model> load_model(const LoadHooks& hooks, const Fixture& fixture) {
  const auto load = [&]() -> Result<std::unique_ptr<Model>> {
    LK_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(fixture.folder));
    LK_ASSIGN_OR_RETURN(const ArchRow* row, find_arch(checkpoint.config().model_type()));
    LK_ASSIGN_OR_RETURN(LinearTable table, row->table(checkpoint.config()));
    LK_ASSIGN_OR_RETURN(DecoderSpec spec, row->decoder(checkpoint.config()));
    const bool gpu = hooks.kernels == "cuda";
    LK_ASSIGN_OR_RETURN(DeviceChoice choice, choose_device({.device = gpu ? "cuda" : "cpu",
                                                            .kernels = gpu ? "" : hooks.kernels}));
    std::unique_ptr<Kernels> kernels = std::move(choice.kernels);
    if (hooks.edit) hooks.edit(spec);
    if (hooks.wrap) kernels = hooks.wrap(std::move(kernels));
    ModelOptions options;
    options.kv_type = hooks.kv_type;
    options.moe = hooks.moe;
    return load_decoder(std::move(checkpoint), std::move(table), std::move(spec),
                        std::move(kernels), options);
  };
  auto model = load();
  if (!model) throw std::runtime_error(model.error().message);
  return std::move(*model);
}

std::vector<std::string> fast_rows() {
  static const std::vector<std::string> rows = [] {
    std::vector<std::string> supported;
    for (const KernelsRow& row : kernels_table()) {
      if (row.name == "reference") continue;
      // Those that this CPU would choose first: their tolerances are the default kernels'.
      if (row.supported() && row.preferred()) supported.emplace_back(row.name);
    }
    for (const KernelsRow& row : kernels_table()) {
      if (row.name == "reference") continue;
      if (row.supported() && !row.preferred()) supported.emplace_back(row.name);
      fmt::print("kernels {}: {}\n", row.name,
                 row.supported() ? "run" : fmt::format("only compiled, they need {}", row.needs));
    }
    return supported;
  }();
  return rows;
}

std::vector<std::string> every_row() {
  std::vector<std::string> rows = fast_rows();
  rows.emplace_back("reference");
  return rows;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

namespace {}  // namespace

Adapter load_adapter(const Model& model, const std::string& name, const Fixture& fixture) {
  const std::string root =
      fixture.adapter_root.empty() ? fixture.folder + "/adapters" : fixture.adapter_root;
  auto adapter = load_peft_adapter(root + "/" + name, name, model.linears(), {});
  if (!adapter) throw std::runtime_error(adapter.error().message);
  return **adapter;
}

void bind(Model& model, int slot, const Adapter& adapter) {
  model.set_slot(slot, model.prepare_adapter(std::make_shared<const Adapter>(adapter)));
}

int slot_of(const std::string& adapter, const Fixture& fixture) {
  const std::vector<std::string>& all = fixture.adapters;
  const auto at = std::find(all.begin(), all.end(), adapter);
  return at == all.end() ? -1 : static_cast<int>(at - all.begin());
}

void bind_all(Model& model, const Fixture& fixture) {
  for (const std::string& name : fixture.adapters)
    bind(model, slot_of(name, fixture), load_adapter(model, name, fixture));
}

std::vector<SequenceRun> run(Model& model, const std::vector<Sequence>& sequences,
                             const RunOptions& options) {
  Random random(options.seed);
  const KvLayout& layout = model.kv_layout();
  std::vector<GroupBlocks> groups;
  std::vector<int> blocks;
  for (const KvGroup& group : layout.groups) {
    groups.emplace_back(group, sequences, random);
    blocks.push_back(groups.back().total());
  }
  std::vector<int32_t> state_slots(sequences.size());
  std::iota(state_slots.begin(), state_slots.end(), 0);
  std::shuffle(state_slots.begin(), state_slots.end(), random);
  KvCache cache(layout, blocks, static_cast<int>(sequences.size()), model.device());
  fill_with_garbage(cache, model.device(), random);

  const int vocab = model.info().vocab, layers = model.info().layers, k = model.info().top_k;
  std::vector<SequenceRun> runs(sequences.size());
  for (size_t s = 0; s < sequences.size(); ++s) {
    runs[s].logits.resize(sequences[s].tokens.size() * vocab);
    runs[s].experts.resize(sequences[s].tokens.size() * layers * k);
  }
  std::vector<int> done(sequences.size(), 0);
  std::vector<float> logits;
  const auto unfinished = [&] {
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (done[i] < static_cast<int>(sequences[i].tokens.size())) return true;
    }
    return false;
  };
  for (int step = 0; unfinished(); ++step) {
    const auto chunks =
        choose_chunks(sequences, done, options.one_token_steps, step + 1 >= options.steps, random);
    if (chunks.empty()) continue;
    const Step s(sequences, chunks, groups, state_slots);
    const int tokens = static_cast<int>(s.ids.size());
    std::vector<int32_t> chosen(size_t{1} * layers * tokens * k), forced(chosen.size());
    // Both directions between [layers, tokens of the batch, k] and each sequence's own array.
    const auto each_row = [&](auto&& body) {
      int row = 0;
      for (const Chunk& c : chunks) {
        const size_t length = sequences[c.sequence].tokens.size();
        for (int p = c.begin; p < c.end; ++p, ++row) {
          for (int l = 0; l < layers; ++l) {
            body(c.sequence, (l * length + p) * k, (size_t{1} * l * tokens + row) * k);
          }
        }
      }
    };
    if (options.forced) {
      each_row([&](int sequence, size_t own, size_t shared) {
        std::copy_n(&(*options.forced)[sequence].experts[own], k, &forced[shared]);
      });
    }
    logits.assign(static_cast<size_t>(tokens) * vocab, NAN);
    ForwardTrace trace;
    if (options.trace) trace.experts = chosen.data();
    if (options.forced) trace.forced_experts = forced.data();
    model.forward(s.batch(), cache, logits.data(), trace);
    each_row([&](int sequence, size_t own, size_t shared) {
      std::copy_n(&chosen[shared], k, &runs[sequence].experts[own]);
    });
    int row = 0;
    for (const Chunk& c : chunks) {
      std::copy_n(&logits[static_cast<size_t>(row) * vocab], (c.end - c.begin) * vocab,
                  &runs[c.sequence].logits[static_cast<size_t>(c.begin) * vocab]);
      row += c.end - c.begin;
    }
  }
  return runs;
}

std::vector<int32_t> ReferenceCase::tokens() const {
  std::vector<int32_t> all = prompt_ids;
  all.insert(all.end(), output_ids.begin(), output_ids.end() - 1);
  return all;
}

std::vector<ReferenceCase> reference_cases(const Fixture& fixture) {
  const auto json = nlohmann::json::parse(reference_text(fixture.folder + "/reference.json"));
  std::vector<ReferenceCase> cases;
  for (const auto& [adapter, list] : json.at("cases").items()) {
    for (const auto& entry : list) {
      ReferenceCase& c = cases.emplace_back();
      c.adapter = adapter;
      entry.at("prompt_ids").get_to(c.prompt_ids);
      entry.at("output_ids").get_to(c.output_ids);
      entry.at("prompt_logprobs").get_to(c.prompt_logprobs);
      entry.at("token_logprobs").get_to(c.token_logprobs);
      entry.at("top5_ids").get_to(c.top5_ids);
      entry.at("top5_logprobs").get_to(c.top5_logprobs);
    }
  }
  return cases;
}

std::vector<double> log_softmax(const float* logits, int vocab) {
  const double max = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(logits[i] - max);
  const double shift = max + std::log(sum);
  std::vector<double> result(vocab);
  for (int i = 0; i < vocab; ++i) result[i] = logits[i] - shift;
  return result;
}

void Deviation::add(const ReferenceCase& reference, const SequenceRun& run, int vocab) {
  const size_t prompt = reference.prompt_ids.size();
  for (size_t i = 0; i + 1 < prompt; ++i) {
    const auto logprobs = log_softmax(&run.logits[i * vocab], vocab);
    values.push_back(
        std::abs(logprobs[reference.prompt_ids[i + 1]] - reference.prompt_logprobs[i]));
  }
  for (size_t i = 0; i < reference.output_ids.size(); ++i) {
    const auto logprobs = log_softmax(&run.logits[(prompt - 1 + i) * vocab], vocab);
    values.push_back(std::abs(logprobs[reference.output_ids[i]] - reference.token_logprobs[i]));
    for (size_t j = 0; j < reference.top5_ids[i].size(); ++j) {
      values.push_back(
          std::abs(logprobs[reference.top5_ids[i][j]] - reference.top5_logprobs[i][j]));
    }
  }
}

double Deviation::mean() const {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double Deviation::quantile(double q) const {
  // A NaN must not hide: it counts as the largest.
  std::vector<double> sorted = values;
  for (double& v : sorted) v = std::isnan(v) ? INFINITY : v;
  std::sort(sorted.begin(), sorted.end());
  return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
}

std::string Deviation::text() const {
  return fmt::format("|dlogprob| of {} values: mean {:.6f}, p99 {:.6f}, largest {:.6f}",
                     values.size(), mean(), quantile(0.99), largest());
}

std::vector<Sequence> sequences_of(const std::vector<ReferenceCase>& cases,
                                   const Fixture& fixture) {
  std::vector<Sequence> sequences;
  for (const ReferenceCase& c : cases)
    sequences.push_back({c.tokens(), slot_of(c.adapter, fixture)});
  return sequences;
}

Deviation deviation(const std::vector<ReferenceCase>& cases, const std::vector<SequenceRun>& runs,
                    int vocab) {
  Deviation total;
  for (size_t i = 0; i < cases.size(); ++i) total.add(cases[i], runs[i], vocab);
  return total;
}

int first_greedy_difference(const ReferenceCase& reference, const SequenceRun& run, int vocab,
                            double margin) {
  for (size_t i = 0; i < reference.output_ids.size(); ++i) {
    if (reference.top5_logprobs[i][0] - reference.top5_logprobs[i][1] < margin) return -1;
    const float* logits = &run.logits[(reference.prompt_ids.size() - 1 + i) * vocab];
    const auto best = std::max_element(logits, logits + vocab) - logits;
    if (best != reference.output_ids[i]) return static_cast<int>(i);
  }
  return -1;
}

namespace {

uint16_t f32_to_f16(float value) {
  // Values here are normal halves: round to nearest by adding half of the last place kept.
  const uint32_t bits = std::bit_cast<uint32_t>(value) + 0x1000u;
  const int exponent = static_cast<int>((bits >> 23) & 0xff) - 112;
  if (exponent <= 0) return 0;
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | (exponent << 10) |
                               ((bits >> 13) & 0x3ffu));
}

class SafetensorsWriter {
 public:
  explicit SafetensorsWriter(std::string dtype) : dtype_(std::move(dtype)) {}

  void add(const std::string& name, int64_t rows, int64_t cols, float size, Random& random) {
    std::normal_distribution<float> normal(0, size);
    const size_t begin = data_.size();
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float value = normal(random);
      const uint16_t half = dtype_ == "F16" ? f32_to_f16(value) : f32_to_bf16(value);
      if (dtype_ == "F32")
        data_.append(reinterpret_cast<const char*>(&value), 4);
      else
        data_.append(reinterpret_cast<const char*>(&half), 2);
    }
    header_[name] = {
        {"dtype", dtype_}, {"shape", {rows, cols}}, {"data_offsets", {begin, data_.size()}}};
  }

  void write(const std::string& path) const {
    std::string header = header_.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t size = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), 8) << header << data_;
    LK_CHECK(file.good());
  }

 private:
  std::string dtype_;
  nlohmann::json header_ = nlohmann::json::object();
  std::string data_;
};

}  // namespace

void write_random_adapter(const std::string& folder, const LinearTable& table, int rank,
                          const std::string& dtype, uint64_t seed) {
  std::filesystem::create_directories(folder);
  Random random(seed);
  SafetensorsWriter writer(dtype);
  const float a_size = 0.05f, b_size = 0.2f / std::sqrt(static_cast<float>(rank));
  for (const LinearSpec& spec : table.linears) {
    const std::string layer = fmt::format("base_model.model.model.layers.{}.", spec.layer);
    std::string path;
    switch (spec.stage) {
      case Stage::kExpertUp:
        path = layer + "mlp.experts.base_layer";
        break;
      case Stage::kExpertDown:
        path = layer + "mlp.experts";
        break;
      case Stage::kHead:
        path = "base_model.model." + spec.path();
        break;
      case Stage::kEmbedding:
        path = "base_model.model.model." + spec.path();
        writer.add(path + ".lora_embedding_A", rank, spec.out, a_size, random);
        writer.add(path + ".lora_embedding_B", spec.in, rank, b_size, random);
        continue;
      default:
        path = "base_model.model.model." + spec.path();
    }
    const int64_t rows = int64_t{std::max(spec.experts, 1)} * rank;
    writer.add(path + ".lora_A.weight", rows, spec.in, a_size, random);
    writer.add(path + ".lora_B.weight", spec.out, rows, b_size, random);
  }
  writer.write(folder + "/adapter_model.safetensors");
  const nlohmann::json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"r", rank},
      {"lora_alpha", 2 * rank},
      {"target_modules",
       {"q_proj", "k_proj", "v_proj", "o_proj", "router", "embed_tokens", "lm_head"}},
      {"target_parameters", {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}},
      {"peft_version", "0.21.0"}};
  std::ofstream(folder + "/adapter_config.json") << config.dump(1);
}

}  // namespace lk::test
