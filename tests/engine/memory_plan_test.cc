#include "engine/memory_plan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/machine_limits.h"

namespace lk {
namespace {

namespace fs = std::filesystem;
constexpr size_t kGib = size_t{1} << 30;

// A root folder with files of /proc and /sys.
class MachineLimitsTest : public testing::Test {
 protected:
  MachineLimitsTest() : root_(fmt::format("{}lk_root_{}", testing::TempDir(), ::getpid())) {
    write("/proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 33554432 kB\n");
  }
  ~MachineLimitsTest() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(MachineLimitsTest, WithoutGroupsTheMachineLimits) {
  const MachineLimits limits = machine_limits(root_);
  EXPECT_EQ(limits.available, 32 * kGib);
  EXPECT_EQ(limits.limited_by, "the machine");
  EXPECT_GE(limits.cpus, 1);
}

TEST_F(MachineLimitsTest, VersionTwoWithTheStrictestOfAllLevels) {
  write("/proc/self/cgroup", "0::/pods/one\n");
  write("/sys/fs/cgroup/pods/one/memory.max", "max\n");
  write("/sys/fs/cgroup/pods/memory.max", fmt::format("{}\n", 8 * kGib));
  write("/sys/fs/cgroup/pods/memory.current", fmt::format("{}\n", 6 * kGib));
  write("/sys/fs/cgroup/pods/memory.stat",
        fmt::format("anon 1\nfile 2\ninactive_file {}\nactive_file 3\n", 4 * kGib));
  write("/sys/fs/cgroup/pods/one/cpu.max", "100000 100000\n");
  write("/sys/fs/cgroup/pods/cpu.max", "max 100000\n");
  const MachineLimits limits = machine_limits(root_);
  EXPECT_EQ(limits.available, 6 * kGib) << "8 less 6 in use, of which 4 can be given back";
  EXPECT_EQ(limits.limited_by, "the control group /pods");
  EXPECT_EQ(limits.cpus, 1);
}

TEST_F(MachineLimitsTest, AContainerSeesItsGroupAtTheRoot) {
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/memory.max", fmt::format("{}\n", 4 * kGib));
  write("/sys/fs/cgroup/memory.current", fmt::format("{}\n", kGib));
  write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  const MachineLimits limits = machine_limits(root_);
  EXPECT_EQ(limits.available, 3 * kGib);
  EXPECT_EQ(limits.limited_by, "the control group /");
  EXPECT_EQ(limits.cpus, 1);
}

TEST_F(MachineLimitsTest, VersionOne) {
  write("/proc/self/cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n");
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", fmt::format("{}\n", 2 * kGib));
  write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", fmt::format("{}\n", kGib / 2));
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
  write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  const MachineLimits limits = machine_limits(root_);
  EXPECT_EQ(limits.available, kGib + kGib / 2);
  EXPECT_EQ(limits.cpus, 1);
  write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_GE(machine_limits(root_).cpus, 1);
}

TEST_F(MachineLimitsTest, UsedUpMeansNothingIsLeft) {
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/memory.max", "1000\n");
  write("/sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(machine_limits(root_).available, 0u);
  write("/sys/fs/cgroup/memory.max", "garbage\n");
  write("/proc/self/cgroup", "garbage\n::\n0::relative\n");
  EXPECT_EQ(machine_limits(root_).available, 32 * kGib);
}

TEST(MachineLimits, OfThisMachine) {
  EXPECT_GT(available_memory(), size_t{1} << 20);
  EXPECT_LT(available_memory(), size_t{1} << 50);
}

const MachineLimits kMachine{8, 16 * kGib, "the machine"};

TEST(MemoryPlan, DefaultsShareWhatTheWeightsLeave) {
  MemoryNeeds needs;
  needs.weights = 8 * kGib;
  needs.kv_full = 100 * kGib;
  needs.kv_least = kGib / 4;
  const auto plan = plan_memory(needs, kMachine);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->threads, 8);
  const size_t rest = 8 * kGib - plan->working;
  EXPECT_EQ(plan->kv_bytes, rest / 2);
  EXPECT_EQ(plan->adapter_bytes, rest / 4);
  EXPECT_EQ(plan->total, 8 * kGib + plan->working + rest / 2 + rest / 4);
  EXPECT_EQ(plan->describe(),
            "8 threads; weights 8.0 GiB, KV cache 3.9 GiB, adapters up to 1.9 GiB, working memory "
            "256.0 MiB: 14.1 GiB of 16.0 GiB (the machine)");
  needs.kv_full = kGib;
  EXPECT_EQ(plan_memory(needs, kMachine)->kv_bytes, kGib);
  needs.adapters = false;
  EXPECT_EQ(plan_memory(needs, kMachine)->adapter_bytes, 0u);
}

TEST(MemoryPlan, FlagsAreHonouredOrRefusedWithEveryPart) {
  MemoryNeeds needs;
  needs.weights = 8 * kGib;
  needs.kv_full = 4 * kGib;
  needs.kv_least = kGib;
  needs.threads = 3;
  needs.kv_bytes = 5 * kGib;
  needs.adapter_bytes = kGib;
  const auto plan = plan_memory(needs, kMachine);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->threads, 3);
  EXPECT_EQ(plan->kv_bytes, 5 * kGib);
  EXPECT_EQ(plan->adapter_bytes, kGib);

  needs.adapter_bytes = 3 * kGib;
  const auto much = plan_memory(needs, kMachine);
  ASSERT_FALSE(much);
  EXPECT_EQ(much.error().kind, ErrorKind::kResource);
  EXPECT_EQ(much.error().message,
            "weights 8.0 GiB, KV cache 5.0 GiB, adapters up to 3.0 GiB, working memory 256.0 MiB "
            "make 16.2 GiB, but there are 16.0 GiB (the machine): lower --max-model-len, "
            "--kv-cache-memory or --adapter-memory");
  needs.adapter_bytes = SIZE_MAX;
  EXPECT_FALSE(plan_memory(needs, kMachine));
  needs.adapter_bytes = 0;
  needs.kv_bytes = kGib / 2;
  const auto little = plan_memory(needs, kMachine);
  ASSERT_FALSE(little);
  EXPECT_NE(little.error().message.find("--kv-cache-memory is 512.0 MiB, but one sequence"),
            std::string::npos)
      << little.error().message;
  needs.kv_bytes.reset();
  needs.threads = 0;
  EXPECT_EQ(plan_memory(needs, kMachine).error().kind, ErrorKind::kInvalid);
}

TEST(MemoryPlan, WeightsThatDoNotFit) {
  MemoryNeeds needs;
  needs.weights = 20 * kGib;
  needs.kv_full = needs.kv_least = kGib;
  const auto plan = plan_memory(needs, kMachine);
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().message.find("weights 20.0 GiB"), std::string::npos);
}

}  // namespace
}  // namespace lk
