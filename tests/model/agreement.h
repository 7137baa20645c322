// A small model's agreement with its reference.json, as every architecture has to show it. For
// tests only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/model/harness.h"

namespace lk::test {

class Agreement {
 public:
  explicit Agreement(Fixture fixture);

  const std::vector<ReferenceCase>& cases() const { return cases_; }
  // The first cases of the base and of each adapter alone, from here on.
  void keep_some_cases(size_t of_each);
  void keep_adapter(const std::string& name);

  // With all adapters bound.
  std::unique_ptr<Model> load(const LoadHooks& hooks) const;
  Deviation deviation_of(Model& model, const RunOptions& options = {.seed = 3, .steps = 5}) const;

  // The plain loops within 1e-3, fast kernels within their tolerances; prints what they reach. Rows
  // that round activations to bfloat16 (by name only) may be left out: a few channels wide, one
  // rounding is much of a sum.
  void expect_agrees(bool rows_that_round = true) const;
  // The same of one row; "cuda" is the GPU's.
  void expect_row_agrees(const std::string& row) const;
  // Of one that rounds activations to bfloat16, on a model of few channels: the replayed ones
  // alone.
  void expect_row_stays_near(const std::string& row) const;
  // The same with activations rounded to 8 bits inside the experts, the adapters reading what they
  // were before.
  void expect_rounded_activations_stay_near() const;
  void expect_rounded_row_stays_near(const std::string& row) const;
  // Alone, in the batch of all, in chunks and token by token.
  void expect_same_bits(const std::string& kernels) const;

 private:
  // Of all cases on the reference kernels, computed once for each selection.
  const std::vector<SequenceRun>& reference_runs() const;

  Fixture fixture_;
  std::string name_;
  std::vector<ReferenceCase> cases_;
  std::vector<Sequence> sequences_;
};

// A folder's name as a test may be called.
std::string test_name(std::string name);

}  // namespace lk::test
