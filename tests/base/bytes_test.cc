#include "base/bytes.h"

#include <gtest/gtest.h>

namespace lk {
namespace {

TEST(Bytes, AsPeopleWriteThem) {
  const size_t gib = size_t{1} << 30;
  for (const auto& [text, bytes] : std::vector<std::pair<const char*, size_t>>{
           {"0", 0},
           {"1073741824", gib},
           {"4GiB", 4 * gib},
           {"4G", 4 * gib},
           {"4gb", 4 * gib},
           {"512M", gib / 2},
           {"1.5G", gib + gib / 2},
           {"1.5 GiB", gib + gib / 2},
           {".5k", 512},
           {"7B", 7},
           {"2T", 2048 * gib},
           {"100KB", 102400},
           {"0.3", 0},
       }) {
    const auto parsed = parse_bytes(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(Bytes, AnythingElseIsRefused) {
  for (const char* text :
       {"",     " ",    "G",   "-1",  "-0",   "+1",  "4GX", "4 G B", "4iB",          "4i",
        "1e9",  "0x10", "nan", "inf", "4,5G", "1G ", " 1G", "4PiB",  "99999999999T", "8388608T",
        "GiB4", "1..5G"}) {
    EXPECT_FALSE(parse_bytes(text)) << text;
  }
  const auto refused = parse_bytes("lots");
  EXPECT_EQ(refused.error().message,
            "'lots' is no size in bytes, such as 512M, 4GiB or 1073741824");
}

TEST(Bytes, Format) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(1023), "1023 bytes");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(size_t{13} << 30), "13.0 GiB");
  EXPECT_EQ(format_bytes(size_t{5000} << 40), "5000.0 TiB");
}

}  // namespace
}  // namespace lk
