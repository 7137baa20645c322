// How much one rendering may cost. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lk::jinja {

// The largest source that is parsed, and how deep its tags and expressions may nest.
inline constexpr size_t kMaxSourceBytes = size_t{4} << 20;
inline constexpr int kMaxParseDepth = 100;
// How deep a list or dict may nest; also bounds the recursion of printing and destruction.
inline constexpr uint32_t kMaxValueDepth = 256;
// What Jinja's sandbox allows.
inline constexpr int64_t kMaxRange = 100000;

struct Limits {
  size_t output_bytes = size_t{64} << 20;  // also the longest string
  // Every evaluated node is a step, every 16 bytes read or written are one: bounds time and memory.
  int64_t steps = 20'000'000;
  int depth = 1200;  // nested evaluations; a macro call takes about eight
};

}  // namespace lk::jinja
