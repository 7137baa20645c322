// One NVIDIA GPU: memory, a stream for the kernels, another for copies beside them, pinned staging,
// and CUDA graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/device.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace lk {

// Throws DeviceError in words, std::bad_alloc for memory that ran out.
void check_cuda(cudaError_t error, const char* what);

class CudaDevice : public Device {
 public:
  // The GPU of that number, which lives as long as the process: others may hold memory of it to the
  // end. Errors: kUnsupported, in one sentence, if there is no such GPU, no driver, or one too old;
  // kResource if others took its memory.
  static Result<CudaDevice*> open(int ordinal);
  static int count();  // GPUs there are; 0 where they cannot be asked
  static bool is_open(int ordinal);
  // Gives back what the driver took for a GPU that nothing was allocated on.
  static void close(int ordinal);
  ~CudaDevice() override;

  std::string_view name() const override { return name_; }
  bool is_host() const override { return false; }
  void set_aside(size_t bytes, MemoryUse use) override;
  void* allocate(size_t bytes, MemoryUse use) override;
  void release(void* data, size_t bytes, MemoryUse use) noexcept override;
  size_t allocated(MemoryUse use) const override { return allocated_[static_cast<size_t>(use)]; }
  void upload(void* to, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  void clear(void* to, size_t bytes) override;
  void download(void* to, const void* from, size_t bytes) override;
  void synchronize() override;
  void check() override;
  void fill(void* to, size_t bytes, size_t granule, const Make& make) override;
  void run_recorded(uint64_t key, const std::function<void()>& work) override;

  cudaStream_t stream() const { return stream_; }
  int multiprocessors() const { return multiprocessors_; }
  const std::string& model() const { return model_; }  // "NVIDIA H200"
  size_t free_memory() const override;
  // Gives memory that was released back; waits for the kernels that are running.
  void free_released();
  // Off: run_recorded runs its work anew each time.
  void use_graphs(bool on) { graphs_on_ = on; }

 private:
  struct Pinned;
  struct Open;
  CudaDevice() = default;
  static Result<std::unique_ptr<CudaDevice>> create(int ordinal);
  struct Aside;
  // Null where nothing is set aside for the use.
  std::unique_ptr<Aside>& aside(MemoryUse use) { return aside_[static_cast<size_t>(use)]; }
  void* take_from(Aside& aside, size_t bytes);
  void clear_new(void* data, size_t bytes) const;
  void wait_for_launched(cudaEvent_t event);
  void forget_recordings();
  void take() const;  // makes this GPU the calling thread's

  std::string name_, model_;
  int ordinal_ = 0, multiprocessors_ = 0;
  cudaStream_t stream_ = nullptr;
  std::array<std::atomic<size_t>, kMemoryUses> allocated_{};

  std::mutex released_mutex_;
  std::vector<void*> released_;  // freed where a wait does no harm
  std::array<std::unique_ptr<Aside>, kMemoryUses> aside_;
  std::mutex recording_mutex_;  // held while the stream is recorded: others may not wait for it

  // Uploads in order with the kernels: a ring of pinned memory.
  std::unique_ptr<Pinned> ring_;
  std::unique_ptr<Pinned> landing_;  // downloads

  // fill(): pinned pieces and a stream for each of its threads.
  struct Lane;
  std::mutex fill_mutex_;
  std::unique_ptr<ThreadPool> fill_pool_;
  std::vector<std::unique_ptr<Lane>> lanes_;

  struct Recording {
    int seen = 0;
    cudaGraphExec_t graph = nullptr;
  };
  bool graphs_on_ = true;
  std::map<uint64_t, Recording> recordings_;
  std::atomic<bool> recordings_stale_{false};  // they may name memory that was released
};

}  // namespace lk
