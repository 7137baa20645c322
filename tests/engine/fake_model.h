// A Model without weights for tests of the engine: the next token is a hash of the tokens that the
// request's own block tables reach and of its adapter, so a wrong table, slot, window or mix-up
// changes the output or is counted as an error.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/request.h"
#include "model/model.h"

namespace lk {

class FakeModel : public Model {
 public:
  static constexpr int kVocab = 64;
  static constexpr int kWindow = 32;

  // `recurrent`: one more layer, whose state is a hash of all tokens.
  explicit FakeModel(int adapter_slots, int max_positions = 2048, bool recurrent = false);

  const ModelInfo& info() const override { return info_; }
  const LinearTable& linears() const override { return table_; }
  const Kernels& kernels() const override;  // never called
  const KvLayout& kv_layout() const override { return layout_; }
  std::shared_ptr<const PreparedAdapter> prepare_adapter(
      std::shared_ptr<const Adapter>) const override {
    return nullptr;
  }
  void set_slot(int slot, std::shared_ptr<const PreparedAdapter> adapter) override;
  void forward(const Batch& batch, KvCache& cache, float* logits,
               const ForwardTrace& trace) override;

  // As a device that chooses tokens does where `choosing`: rows of which a choice is wanted come
  // back as NaNs.
  bool chooses() const override { return choosing; }
  void forward_and_choose(const Batch& batch, KvCache& cache, const StepOutput& output) override;
  int most_top() const override { return most_best; }
  void read_row(int row, float* logits) override;
  int most_step_tokens() const override { return most_tokens; }

  // Logits after `tokens` with adapter `identity` (0: base): what `forward` must come to.
  static std::vector<float> logits_after(const std::vector<int32_t>& tokens, uint64_t identity);
  static int32_t greedy_after(const std::vector<int32_t>& tokens, uint64_t identity);

  // An adapter whose prepared form carries its identity.
  static std::shared_ptr<const EngineAdapter> adapter(uint64_t identity,
                                                      const std::string& name = "");

  ModelInfo info_;
  std::vector<std::string> errors;  // broken contracts
  int largest_step = 0;             // tokens
  int most_sequences = 0;
  size_t most_adapters = 0;  // distinct in one step
  int most_rows = 0;
  int emptied = 0;  // slots
  bool choosing = false;
  int most_best = 0;
  int chosen = 0, read = 0;  // rows
  int most_tokens = 1 << 20;
  // Called at the beginning of each pass; may throw.
  std::function<void(const Batch&)> before_forward;

 private:
  struct Cell {
    int32_t token = -1, position = -1;
    uint64_t identity = 0;  // of the adapter that wrote it
  };
  // What the recurrent layer keeps: tokens so far, their hash, and whose they are.
  struct State {
    uint64_t hash = 1, identity = 0;
    int64_t position = 0;
  };
  void recur(const Batch& batch, KvCache& cache, int sequence);
  void check(bool ok, const std::string& what) {
    if (!ok && errors.size() < 10) errors.push_back(what);
  }

  uint64_t identity_of(int slot) const { return slot < 0 ? 0 : slots_.at(slot); }

  KvLayout layout_;
  LinearTable table_;
  std::vector<uint64_t> slots_;                 // identity by slot
  std::vector<std::map<int64_t, Cell>> cells_;  // by group, by block * 16 + offset
  std::vector<float> rows_;                     // of the last step that chose
};

}  // namespace lk
