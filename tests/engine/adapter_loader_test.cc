// Loads into memory that was set aside on a device, while it is full.
#include "engine/adapter_loader.h"

#include <gtest/gtest.h>

#include <future>

#include "base/check.h"
#include "model/lora.h"
#include "tests/engine/fake_model.h"

namespace lk {
namespace {

const std::string kModel = LK_SOURCE_DIR "/models/tiny-gpt-oss-mxfp4";

// Its memory is full for the first `refusals` attempts.
class FullModel : public FakeModel {
 public:
  explicit FullModel(int refusals) : FakeModel(1), left_(refusals) {
    ModelOptions options;
    options.threads = 1;
    auto loaded = Model::load(kModel, options);
    LK_CHECK(loaded.has_value());
    model_ = std::move(*loaded);
  }
  const LinearTable& linears() const override { return model_->linears(); }
  std::shared_ptr<const PreparedAdapter> prepare_adapter(
      std::shared_ptr<const Adapter> adapter) const override {
    if (lost) throw DeviceError("the GPU failed: it fell off the bus");
    if (left_-- > 0) throw OutOfMemory("7 bytes are free");
    return model_->prepare_adapter(std::move(adapter));
  }

  bool lost = false;

 private:
  std::unique_ptr<Model> model_;
  mutable std::atomic<int> left_;
};

Result<LoadedAdapter> load(const Model& model) {
  std::promise<Result<LoadedAdapter>> loaded;
  const auto returns = std::make_shared<AdapterReturns>();
  AdapterLoader loader(model, {}, returns, /*threads=*/1, /*niceness=*/0);
  const auto source = adapter_source(kModel + "/adapters/sql");
  LK_CHECK(source.has_value());
  loader.start(*source, [&](Result<LoadedAdapter> result) { loaded.set_value(std::move(result)); });
  return loaded.get_future().get();
}

TEST(AdapterLoader, WaitsForMemoryThatOthersLeave) {
  const FullModel model(5);
  const auto sql = load(model);
  ASSERT_TRUE(sql) << sql.error().message;
  EXPECT_GT((*sql)->bytes, 0u);
}

TEST(AdapterLoader, SaysThatTheDeviceIsLost) {
  FullModel model(0);
  model.lost = true;
  const auto sql = load(model);
  ASSERT_FALSE(sql);
  EXPECT_EQ(sql.error().kind, ErrorKind::kInternal);
  EXPECT_EQ(sql.error().message, "the GPU failed: it fell off the bus");
}

TEST(AdapterLoader, SaysThatTheMemorySetAsideIsFull) {
  const FullModel model(1 << 20);
  const auto sql = load(model);
  ASSERT_FALSE(sql);
  EXPECT_EQ(sql.error().kind, ErrorKind::kResource);
  EXPECT_EQ(sql.error().message, "there is not memory enough to load it: 7 bytes are free");
}

}  // namespace
}  // namespace lk
