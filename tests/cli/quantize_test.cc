// `lorikeet quantize` and `synth-lora` as processes: what they print, and what goes wrong.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/cli/process.h"

namespace lk {
namespace {

namespace fs = std::filesystem;

// A name for a folder that is not there, removed with this object.
class NewFolder {
 public:
  explicit NewFolder(const std::string& name)
      : path_(fs::temp_directory_path() /
              ("lorikeet_quantize." + std::to_string(getpid()) + "." + name)) {
    fs::remove_all(path_);
  }
  ~NewFolder() { fs::remove_all(path_); }
  std::string path() const { return path_; }

 private:
  fs::path path_;
};

void expect_refused(const std::vector<std::string>& args, const std::string& part) {
  const ProcessResult result = run_lorikeet(args);
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

TEST(QuantizeCommand, ReportsErrorsAndPerplexity) {
  const NewFolder out("report");
  const std::string text = temporary_file(
      "Count the Monday flights of Aerus. List the names of all pilots who flew on a Tuesday.");
  const ProcessResult result =
      run_lorikeet({"quantize", tiny_model(), out.path(), "--format", "fp8-channel", "--keep",
                    "self_attn", "--keep", "nothing", "--threads", "2", "--report", text});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "lorikeet: warning: --keep nothing names no linear of the model\n");
  const std::vector<std::string> lines = result.lines();
  ASSERT_EQ(lines.size(), 12u + 2u) << result.out;
  double error = 0;
  EXPECT_EQ(std::sscanf(lines[0].c_str(),
                        "model.layers.0.mlp.experts.gate_up_proj mxfp4 -> fp8-channel relative "
                        "error %lf",
                        &error),
            1)
      << lines[0];
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 0.04);
  int tokens = 0;
  double before = 0, after = 0;
  EXPECT_EQ(std::sscanf(lines[12].c_str(), "perplexity over %d tokens: %lf before, %lf after",
                        &tokens, &before, &after),
            3)
      << lines[12];
  EXPECT_GT(tokens, 10);
  EXPECT_GT(before, 1);
  EXPECT_NEAR(after / before, 1, 0.2);
  EXPECT_EQ(run_lorikeet({"run", out.path(), "--prompt", "The", "--max-tokens", "2"}).code, 0);
}

TEST(QuantizeCommand, RefusesInASentence) {
  const NewFolder out("refused");
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"quantize", tiny_model(), out.path()};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  expect_refused(with({}), "--format");
  expect_refused(with({"--format", "int8"}), "known are mxfp4, nvfp4");
  expect_refused(with({"--format", "fp8-channel", "--recipe", "transformers"}),
                 "--recipe may be compressed-tensors");
  expect_refused(with({"--format", "mxfp4", "--shard-size", "none"}), "--shard-size");
  expect_refused(with({"--format", "mxfp4", "--keep", "("}), "--keep");
  expect_refused(with({"--format", "mxfp4", "--report", "/no/such/text"}), "/no/such/text");
  expect_refused(with({"--format", "mxfp4", "--report", temporary_file("x")}), "too few");
  expect_refused({"quantize", tiny_model(), tiny_model(), "--format", "mxfp4"},
                 "is the folder that is read");
  expect_refused({"quantize", tiny_model(), "/proc/none", "--format", "mxfp4"},
                 "cannot make the folder");
  EXPECT_FALSE(fs::exists(out.path()));
}

TEST(QuantizeCommand, AFullDiskIsToldBeforeTheWork) {
  const NewFolder disk("disk");
  fs::create_directories(disk.path());
  if (::mount("tmpfs", disk.path().c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "no file system may be mounted here";
  }
  for (const std::string& shard : {"5GiB", "1MiB"}) {
    const ProcessResult result = run_lorikeet(
        {"quantize", tiny_model(), disk.path(), "--format", "nvfp4", "--shard-size", shard});
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.err.find("No space left on device"), std::string::npos) << result.err;
    EXPECT_TRUE(fs::is_empty(disk.path()));
  }
  ::umount(disk.path().c_str());
}

TEST(QuantizeCommand, AnInterruptLeavesNothing) {
  const NewFolder out("interrupted");
  const std::string program = std::string(LK_BINARY_DIR) + "/bin/lorikeet";
  const std::string err = temporary_file("");
  const pid_t child = ::fork();
  if (child == 0) {
    std::freopen(err.c_str(), "w", stderr);
    ::execl(program.c_str(), program.c_str(), "quantize", tiny_model().c_str(), out.path().c_str(),
            "--format", "mxfp8", "--threads", "1", "--report", nullptr);
    ::_exit(127);
  }
  while (!fs::exists(out.path() + "/model.safetensors") &&
         ::waitpid(child, nullptr, WNOHANG) == 0) {
    ::usleep(500);
  }
  ::kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  std::ifstream file(err);
  const std::string said{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(WEXITSTATUS(status), 130) << said;
  EXPECT_NE(said.find("interrupted: " + out.path() + " was not written"), said.npos) << said;
  EXPECT_FALSE(fs::exists(out.path()));
}

TEST(SynthLora, RunsWhatItWrote) {
  const NewFolder out("lora");
  const ProcessResult made = run_lorikeet(
      {"synth-lora", tiny_model(), out.path(), "--r", "5", "--targets", "all", "--seed", "3"});
  ASSERT_EQ(made.code, 0) << made.err;
  const std::vector<std::string> prompt = {"run",      tiny_model(), "--threads",    "1",
                                           "--prompt", "The",        "--max-tokens", "12"};
  std::vector<std::string> adapted = prompt;
  for (const char* word : {"--adapter", "made"}) adapted.emplace_back(word);
  adapted.push_back("--lora=made=" + out.path());
  const ProcessResult base = run_lorikeet(prompt), with = run_lorikeet(adapted);
  EXPECT_EQ(with.code, 0) << with.err;
  EXPECT_NE(with.out, base.out);
  expect_refused({"synth-lora", tiny_model(), out.path(), "--targets", "q_proj"},
                 "holds an adapter already");
  expect_refused({"synth-lora", tiny_model(), out.path() + "2", "--targets", "mlp.gate"},
                 "has no linear 'mlp.gate'");
  expect_refused({"synth-lora", tiny_model(), out.path() + "2", "--r", "0"}, "--r");
}

}  // namespace
}  // namespace lk
