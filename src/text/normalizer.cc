#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/check.h"
#include "text/utf8_repair.h"

namespace lk {
namespace {

using Step = Normalizer::Step;

// No form changes characters below these: U+0300 for NFC (the first combining mark), U+00A0 for the
// others.
bool unchanged(std::string_view text, Step step) {
  const uint8_t first = step == Step::kNfc ? 0xCC : step == Step::kLowercase ? 'A' : 0x80;
  if (step == Step::kLowercase) {
    return std::none_of(text.begin(), text.end(),
                        [](char c) { return (c >= 'A' && c <= 'Z') || (c & 0x80); });
  }
  return std::none_of(text.begin(), text.end(),
                      [&](char c) { return static_cast<uint8_t>(c) >= first; });
}

void append_decomposed(std::vector<int32_t>& out, uint32_t code, utf8proc_option_t options) {
  constexpr int kRoom = 32;  // the longest decomposition (U+FDFA) has 18 code points
  int32_t parts[kRoom];
  int boundary = 0;
  const auto n =
      utf8proc_decompose_char(static_cast<int32_t>(code), parts, kRoom, options, &boundary);
  LK_CHECK(n >= 0 && n <= kRoom);
  out.insert(out.end(), parts, parts + n);
}

// utf8proc_map() sorts combining marks by swapping neighbours, quadratic on a long run of them;
// hence by parts.
std::string normal_form(std::string_view text, bool compose, bool compatible) {
  int options = UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0);
  std::vector<int32_t> codes;
  codes.reserve(text.size());
  const int decompose = options | UTF8PROC_DECOMPOSE;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = next_utf8(text, pos);
    pos += step.length;
    if (step.code < 0x80)
      codes.push_back(static_cast<int32_t>(step.code));
    else
      append_decomposed(codes, step.code, static_cast<utf8proc_option_t>(decompose));
  }
  const auto mark_class = [](int32_t code) { return utf8proc_get_property(code)->combining_class; };
  for (auto it = codes.begin(); it != codes.end();) {
    if (*it < 0x300 || mark_class(*it) == 0) {
      ++it;
      continue;
    }
    const auto end =
        std::find_if(it, codes.end(), [&](int32_t code) { return mark_class(code) == 0; });
    std::stable_sort(it, end, [&](int32_t a, int32_t b) { return mark_class(a) < mark_class(b); });
    it = end;
  }
  auto n = static_cast<utf8proc_ssize_t>(codes.size());
  if (compose) {
    n = utf8proc_normalize_utf32(codes.data(), n,
                                 static_cast<utf8proc_option_t>(options | UTF8PROC_COMPOSE));
    LK_CHECK(n >= 0);
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < n; ++i) append_utf8(out, static_cast<uint32_t>(codes[i]));
  return out;
}

// The characters that NFC leaves alone whatever stands around them, but for one that follows and
// composes with them: not a mark, not the second half of a composition, and their own composed
// form.
bool inert_alone(uint32_t code) {
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<int32_t>(code));
  if (property->combining_class != 0) return false;
  if (property->comb_index >= 0x8000 && property->comb_index != UINT16_MAX) return false;
  if ((code >= 0x1161 && code <= 0x1175) || (code >= 0x11A8 && code <= 0x11C2))
    return false;  // Hangul jamo
  if (code >= 0xAC00 && code <= 0xD7A3) return true;
  if (property->decomp_seqindex == UINT16_MAX) return true;
  std::string self;
  append_utf8(self, code);
  return normal_form(self, true, false) == self;
}

bool inert(uint32_t code) {
  static const std::vector<bool> table = [] {
    std::vector<bool> inert(0x10000);
    for (uint32_t c = 0; c < inert.size(); ++c)
      inert[c] = (c < 0xD800 || c >= 0xE000) && inert_alone(c);
    return inert;
  }();
  return code < table.size() ? table[code] : inert_alone(code);
}

// NFC changes nothing in most text; the stretches that it may change go from an inert character to
// before the next.
std::string composed(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t copied = 0;  // text before is in `out`
  size_t last = 0;    // the last character read, inert unless it is the first
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = next_utf8(text, pos);
    if (step.code < 0x300 || inert(step.code)) {
      last = pos;
      pos += step.length;
      continue;
    }
    size_t end = pos + step.length;
    while (end < text.size()) {
      const Utf8Step next = next_utf8(text, end);
      if (inert(next.code)) break;
      end += next.length;
    }
    out.append(text, copied, last - copied);
    out += normal_form(text.substr(last, end - last), true, false);
    copied = last = pos = end;
  }
  out.append(text, copied);
  return out;
}

// Character by character, as Rust's char::to_lowercase (no final sigma).
std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = next_utf8(text, pos);
    pos += step.length;
    if (step.code == 0x130) {
      out += "i\xCC\x87";  // the one character whose lower case has two code points
    } else {
      append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<int32_t>(step.code))));
    }
  }
  return out;
}

}  // namespace

std::string_view Normalizer::apply(std::string_view text, std::string& buffer) const {
  for (const Step step : steps_) {
    if (unchanged(text, step)) continue;
    if (step == Step::kLowercase) {
      buffer = lowercase(text);
    } else if (step == Step::kNfc) {
      buffer = composed(text);
    } else {
      buffer = normal_form(text, step == Step::kNfkc, step == Step::kNfkc || step == Step::kNfkd);
    }
    text = buffer;
  }
  return text;
}

}  // namespace lk
