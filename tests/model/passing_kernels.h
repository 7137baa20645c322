// Kernels that hand every stage on to others: what faults are planted in. For tests only.
#pragma once

#include <memory>
#include <utility>

#include "kernels/kernels.h"

namespace lk::test {

class PassingKernels : public Kernels {
 public:
  explicit PassingKernels(std::unique_ptr<Kernels> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  int threads() const override { return inner_->threads(); }
  std::unique_ptr<Weights> pack(const StoredLinear& linear, const ProductForm& form,
                                bool drop) override {
    return inner_->pack(linear, form, drop);
  }
  bool keeps_views(const ProductForm& form) const override { return inner_->keeps_views(form); }
  std::unique_ptr<LoraWeights> pack_lora(const LinearSpec& spec,
                                         std::span<const LoraSource> experts) const override {
    return inner_->pack_lora(spec, experts);
  }
  void embed(const Batch& b, const EmbedArgs& args) override { inner_->embed(b, args); }
  void qkv(const Batch& b, const QkvArgs& args) override { inner_->qkv(b, args); }
  void attention(const Batch& b, const AttentionArgs& args) override { inner_->attention(b, args); }
  void delta_net(const Batch& b, const DeltaNetArgs& args) override { inner_->delta_net(b, args); }
  void mamba(const Batch& b, const MambaArgs& args) override { inner_->mamba(b, args); }
  void project(const Batch& b, const ProjectArgs& args) override { inner_->project(b, args); }
  void output(const Batch& b, const OutputArgs& args) override { inner_->output(b, args); }
  void shared_expert(const Batch& b, const SharedExpertArgs& args) override {
    inner_->shared_expert(b, args);
  }
  void route(const Batch& b, const RouteArgs& args) override { inner_->route(b, args); }
  void experts(const Batch& b, const ExpertArgs& args) override { inner_->experts(b, args); }
  void head(const Batch& b, const HeadArgs& args) override { inner_->head(b, args); }

 protected:
  std::unique_ptr<Kernels> inner_;
};

}  // namespace lk::test
