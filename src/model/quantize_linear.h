// Writes one linear of a plan: decodes the rows of the source, encodes them, matrix by matrix. Used
// by one thread, which spreads the rows of a matrix over a pool.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "base/thread_pool.h"
#include "model/quantize_plan.h"

namespace lk {

class LinearWriter {
 public:
  // `wrote` is told the bytes of each write; false stops the work.
  LinearWriter(const Target& target, const QuantizePlan& plan, const SafetensorsWriter& out,
               ThreadPool& pool, bool measure, std::function<bool(uint64_t)> wrote);

  // Writes everything but what is copied. False if `wrote` stopped it. Errors: kResource.
  Result<bool> write(const PlannedLinear& linear);
  // Of the linear that was written last: |new - old| / |old|; 0 unless it was measured.
  double error() const;

 private:
  struct Sums {
    double difference = 0, magnitude = 0;  // squares
  };
  using DecodeRow = std::function<void(int64_t row, float* out)>;

  float tensor_scale(const PlannedLinear& linear, const Piece& piece, int expert);
  float largest_magnitude_of(const PlannedLinear& linear, RowPart part, int expert);
  void encode(const Piece& piece, const DecodeRow& decode, StoredMatrix& matrix);
  void transcribe(const PlannedLinear& linear, const Piece& piece, int expert,
                  StoredMatrix& matrix);
  Result<bool> write_plain(const PlannedLinear& linear, const Piece& piece, int expert);
  Result<bool> write_matrix(const Piece& piece, int index, const StoredMatrix& matrix);
  Result<bool> write_bias(const PlannedLinear& linear, const Piece& piece);
  Result<bool> put(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  void add_error(const Piece& piece, const DecodeRow& decode, const StoredMatrix& matrix);

  const Target& target_;
  const QuantizePlan& plan_;
  const SafetensorsWriter& out_;
  ThreadPool& pool_;
  const bool measure_;
  const std::function<bool(uint64_t)> wrote_;
  std::vector<std::byte> codes_, scales_;
  std::map<int, float> attention_largest_;  // by layer: of query, key and value
  Sums sums_;
};

}  // namespace lk
