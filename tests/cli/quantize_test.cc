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
                    "self_attn", "--keep", "nothing", "--threads", "2", "--report=" + text});
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

// A flag takes no word behind it, wherever it stands.
TEST(QuantizeCommand, ReportStandsAnywhere) {
  const std::string in = "/no/such/model";
  const NewFolder out("anywhere");
  const std::vector<std::string> words = {in, out.path(), "--format", "mxfp4"};
  for (const std::string& report : {std::string("--report"), "--report=" + temporary_file("x")}) {
    for (size_t at : {0, 1, 2, 4}) {
      std::vector<std::string> args = words;
      args.insert(args.begin() + static_cast<ptrdiff_t>(at), report);
      args.insert(args.begin(), "quantize");
      expect_refused(args, in);
    }
  }
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
  expect_refused(with({"--format", "mxfp4", "--report=/no/such/text"}), "/no/such/text");
  expect_refused(with({"--format", "mxfp4", "--report=" + temporary_file("x")}), "too few");
  expect_refused(with({"--format", "mxfp4", "--report", "text"}),
                 "there is a word beside IN and OUT: text; a text to measure is written --report=");
  expect_refused(with({"--format", "fp8-tensor", "--keep", "model.layers.1.mlp.experts.2"}),
                 "--keep names 1 of the 16 experts of model.layers.1.mlp.experts.gate_up_proj "
                 "(expert 2 first), but experts are quantized or kept together; --keep "
                 "model.layers.1.mlp.experts.gate_up_proj leaves all of them as they are");
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

// Starts the program, sends it `signal` when `file` is there, and gives its exit code (128 + signal
// if it was killed) and what it said.
ProcessResult stopped_at(const std::vector<std::string>& args, const std::string& file,
                         int signal) {
  const std::string program = std::string(LK_BINARY_DIR) + "/bin/lorikeet";
  const std::string err = temporary_file("");
  std::vector<const char*> words = {program.c_str()};
  for (const std::string& arg : args) words.push_back(arg.c_str());
  words.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    std::freopen(err.c_str(), "w", stderr);
    ::execv(program.c_str(), const_cast<char**>(words.data()));
    ::_exit(127);
  }
  int status = 0;
  bool ended = false;
  while (!fs::exists(file) && !(ended = ::waitpid(child, &status, WNOHANG) == child)) ::usleep(500);
  if (!ended) {
    ::kill(child, signal);
    ::waitpid(child, &status, 0);
  }
  ProcessResult result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::ifstream said(err);
  result.err = {std::istreambuf_iterator<char>(said), {}};
  return result;
}

// The commands that write folders, each at a work of seconds; {} is the folder.
struct Writer {
  std::vector<std::string> args;
  std::string weights;  // the first file written
};
std::vector<Writer> writers(const std::string& out) {
  return {{{"quantize", tiny_model(), out, "--format", "mxfp8", "--threads", "1", "--report"},
           "/model.safetensors"},
          {{"synth", "gpt-oss-20b", out, "--layers", "1"}, "/model.safetensors"},
          {{"synth", tiny_model(), out, "--adapters", "2", "--rank", "8192"},
           "/adapter0/adapter_model.safetensors"},
          {{"synth-lora", tiny_model(), out, "--r", "8192"}, "/adapter_model.safetensors"}};
}

TEST(WritingCommands, AnInterruptLeavesNothing) {
  const NewFolder above("interrupted");
  for (const Writer& writer : writers(above.path() + "/out")) {
    SCOPED_TRACE(writer.args[0]);
    for (const int signal : {SIGINT, SIGTERM}) {
      const std::string out = above.path() + "/out";
      const ProcessResult result = stopped_at(writer.args, out + writer.weights, signal);
      EXPECT_EQ(result.code, 130) << result.err;
      EXPECT_NE(result.err.find("interrupted: " + out + " was not written"), std::string::npos)
          << result.err;
      EXPECT_FALSE(fs::exists(above.path()));  // made by the command too
    }
  }
}

TEST(WritingCommands, TellWhatAKilledRunLeft) {
  const NewFolder out("killed");
  for (const Writer& writer : writers(out.path())) {
    SCOPED_TRACE(writer.args[0]);
    EXPECT_EQ(stopped_at(writer.args, out.path() + writer.weights, SIGKILL).code, 128 + SIGKILL);
    expect_refused(writer.args, "holds part of a checkpoint, left by a run that did not end");
    EXPECT_TRUE(fs::exists(out.path() + writer.weights));  // not ours to remove
    fs::remove_all(out.path());
  }
}

TEST(WritingCommands, AFailureLeavesNothing) {
  const NewFolder out("failed");
  for (const Writer& writer : writers(out.path() + "/a/b")) {
    SCOPED_TRACE(writer.args[0]);
    // No file may grow over half a megabyte.
    const ProcessResult result = run_lorikeet(writer.args, "", "", "ulimit -f 512;");
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_NE(result.err.find("File too large"), std::string::npos) << result.err;
    EXPECT_FALSE(fs::exists(out.path()));
  }
}

TEST(WritingCommands, RefuseFoldersThatHoldSomething) {
  const std::string model = temporary_model();
  const NewFolder out("full");
  fs::create_directories(out.path());
  std::ofstream(out.path() + "/notes") << "mine";
  for (const Writer& writer : writers(out.path())) expect_refused(writer.args, "is not empty");
  EXPECT_TRUE(fs::exists(out.path() + "/notes"));
  expect_refused({"synth", tiny_model(), model}, "holds a model already");
  expect_refused({"synth-lora", tiny_model(), model}, "holds a model already");
  expect_refused({"synth-lora", model, model}, "is the folder that is read");
  for (const std::string& inside : {model + "/made", model + "/a/../b/c"}) {
    const std::string part = "lies inside " + model;
    expect_refused({"quantize", model, inside, "--format", "mxfp8"}, part);
    expect_refused({"synth", model, inside}, part);
  }
  EXPECT_FALSE(fs::exists(model + "/made") || fs::exists(model + "/a") || fs::exists(model + "/b"));
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
