#include "backend/cuda/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <thread>

#include "backend/arena.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"

namespace lk {
namespace {

constexpr size_t kRingBytes = size_t{16} << 20;
constexpr size_t kPieceBytes = size_t{8} << 20;
// Copies to the device run at the bus's speed with a few threads that fill pinned memory; packing
// needs more.
constexpr int kMostFillThreads = 16;
// Beyond these the recordings' own memory (megabytes each) outweighs what they save.
constexpr size_t kMostRecordings = 192;

}  // namespace

void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky
    throw std::bad_alloc();
  }
  throw DeviceError(
      fmt::format("the GPU failed: {}: {}", what, std::string(cudaGetErrorString(error))));
}

// Host memory that the GPU reads and writes by itself.
struct CudaDevice::Pinned {
  explicit Pinned(size_t bytes) : size(bytes) {
    check_cuda(cudaHostAlloc(&data, bytes, cudaHostAllocDefault), "allocating pinned memory");
  }
  ~Pinned() { cudaFreeHost(data); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  void* data = nullptr;
  size_t size = 0, used = 0;
};

// What one thread of fill() needs: while one piece travels the other is made.
struct CudaDevice::Lane {
  Lane() : pieces{Pinned(kPieceBytes), Pinned(kPieceBytes)} {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
    for (cudaEvent_t& event : done)
      check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  }
  ~Lane() {
    for (cudaEvent_t event : done) cudaEventDestroy(event);
    cudaStreamDestroy(stream);
  }

  void send(void* to, size_t bytes, size_t offset, const Make& make) {
    Pinned& piece = pieces[next];
    check_cuda(cudaEventSynchronize(done[next]), "copying to the GPU");
    make({static_cast<std::byte*>(piece.data), bytes}, offset);
    check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(to) + offset, piece.data, bytes,
                               cudaMemcpyHostToDevice, stream),
               "copying to the GPU");
    check_cuda(cudaEventRecord(done[next], stream), "recording an event");
    next ^= 1;
  }

  Pinned pieces[2];
  cudaEvent_t done[2] = {};
  cudaStream_t stream = nullptr;
  int next = 0;
};

// Memory that was set aside for a use.
struct CudaDevice::Aside {
  explicit Aside(size_t bytes) : arena(bytes) {
    void* all = nullptr;
    check_cuda(cudaMalloc(&all, bytes), "setting memory aside");
    data = static_cast<char*>(all);
    check_cuda(cudaEventCreateWithFlags(&launched, cudaEventDisableTiming | cudaEventBlockingSync),
               "creating an event");
  }
  ~Aside() {
    cudaFree(data);
    cudaEventDestroy(launched);
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  char* data = nullptr;
  std::mutex mutex;  // of those that allocate
  Arena arena;
  cudaEvent_t launched = nullptr;
  std::vector<size_t> released;  // offsets that kernels may still read; by released_mutex_
};

// Those that are open, by number.
struct CudaDevice::Open {
  std::mutex mutex;
  std::map<int, std::unique_ptr<CudaDevice>> devices;

  static Open& all() {
    static auto& open = *new Open;  // never destroyed: the driver may be gone before statics are
    return open;
  }
};

Result<CudaDevice*> CudaDevice::open(int ordinal) {
  Open& open = Open::all();
  const std::lock_guard lock(open.mutex);
  std::unique_ptr<CudaDevice>& device = open.devices[ordinal];
  if (!device) {
    LK_ASSIGN_OR_RETURN(device, create(ordinal));
  }
  return device.get();
}

int CudaDevice::count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

bool CudaDevice::is_open(int ordinal) {
  Open& open = Open::all();
  const std::lock_guard lock(open.mutex);
  return open.devices[ordinal] != nullptr;
}

void CudaDevice::close(int ordinal) {
  Open& open = Open::all();
  const std::lock_guard lock(open.mutex);
  if (!open.devices[ordinal]) return;
  open.devices[ordinal].reset();
  cudaDeviceReset();  // of the GPU that was taken to close it
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(int ordinal) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0) return unsupported("cuda:{}: there is no NVIDIA driver", ordinal);
    return unsupported("cuda:{}: the NVIDIA driver supports CUDA {}.{}, and {}.{} is needed",
                       ordinal, driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
  }
  if (found != cudaSuccess || count == 0) {
    return unsupported(
        "cuda:{}: there is no NVIDIA GPU ({})", ordinal,
        std::string(cudaGetErrorString(found == cudaSuccess ? cudaErrorNoDevice : found)));
  }
  if (ordinal < 0 || ordinal >= count) {
    return unsupported("cuda:{}: there {} {} NVIDIA GPU{}, numbered from 0", ordinal,
                       count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
  }
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, ordinal), "asking for properties");
  if (properties.major < 8) {
    return unsupported("cuda:{}: the {} has compute capability {}.{}, and 8.0 is needed", ordinal,
                       properties.name, properties.major, properties.minor);
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice);
  device->ordinal_ = ordinal;
  device->name_ = fmt::format("cuda:{}", ordinal);
  device->model_ = properties.name;
  device->multiprocessors_ = properties.multiProcessorCount;
  try {
    check_cuda(cudaSetDevice(ordinal), "taking the GPU");
    check_cuda(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking),
               "creating a stream");
    device->ring_ = std::make_unique<Pinned>(kRingBytes);
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::kResource, "cuda:{}: the GPU's memory is taken by others", ordinal);
  } catch (const DeviceError& error) {
    return fail(ErrorKind::kResource, "cuda:{}: {}", ordinal, error.what());
  }
  return device;
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(ordinal_);
  cudaDeviceSynchronize();
  forget_recordings();
  free_released();
  lanes_.clear();
  if (stream_) cudaStreamDestroy(stream_);
}

void CudaDevice::take() const { check_cuda(cudaSetDevice(ordinal_), "taking the GPU"); }

size_t CudaDevice::free_memory() const {
  take();
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
  return free;
}

void CudaDevice::set_aside(size_t bytes, MemoryUse use) {
  take();
  LK_CHECK(allocated(use) == 0);
  aside(use).reset();
  if (bytes > 0) aside(use) = std::make_unique<Aside>(bytes);
}

// What was launched so far is done. For threads beside the engine's.
void CudaDevice::wait_for_launched(cudaEvent_t event) {
  {
    const std::lock_guard lock(recording_mutex_);
    check_cuda(cudaEventRecord(event, stream_), "recording an event");
  }
  check_cuda(cudaEventSynchronize(event), "waiting for the kernels");
}

void* CudaDevice::take_from(Aside& aside, size_t bytes) {
  const std::lock_guard lock(aside.mutex);
  std::optional<size_t> offset = aside.arena.allocate(bytes);
  if (!offset) {
    // Released places are taken back only now: whoever loads may wait for kernels, whoever releases
    // may be the engine's thread.
    std::vector<size_t> released;
    {
      const std::lock_guard guard(released_mutex_);
      released.swap(aside.released);
    }
    if (!released.empty()) wait_for_launched(aside.launched);
    for (const size_t place : released) aside.arena.release(place);
    offset = aside.arena.allocate(bytes);
  }
  if (offset) return aside.data + *offset;
  throw OutOfMemory(fmt::format(
      "of the memory set aside on {} {} are free, {} of them in one piece, and {} are needed",
      name_, format_bytes(aside.arena.free()), format_bytes(aside.arena.largest_gap()),
      format_bytes(bytes)));
}

void CudaDevice::clear_new(void* data, size_t bytes) const {
  check_cuda(cudaMemset(data, 0, bytes), "clearing memory");
  // The kernels' stream does not wait for the default one by itself.
  check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "clearing memory");
}

void* CudaDevice::allocate(size_t bytes, MemoryUse use) {
  take();
  if (aside(use)) {
    void* place = take_from(*aside(use), bytes);
    clear_new(place, bytes);
    allocated_[static_cast<size_t>(use)] += bytes;
    return place;
  }
  // Whoever takes memory waits anyway.
  free_released();
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, bytes), "allocating memory");
  clear_new(data, bytes);
  allocated_[static_cast<size_t>(use)] += bytes;
  return data;
}

void CudaDevice::release(void* data, size_t bytes, MemoryUse use) noexcept {
  allocated_[static_cast<size_t>(use)] -= bytes;
  if (use != MemoryUse::kAdapters) recordings_stale_ = true;
  const std::lock_guard lock(released_mutex_);
  if (Aside* set = aside(use).get())
    set->released.push_back(static_cast<size_t>(static_cast<char*>(data) - set->data));
  else
    released_.push_back(data);
}

void CudaDevice::free_released() {
  std::vector<void*> released;
  {
    const std::lock_guard lock(released_mutex_);
    released.swap(released_);
  }
  for (void* data : released) cudaFree(data);  // waits for the kernels that are running
}

void CudaDevice::upload(void* to, const void* from, size_t bytes) {
  take();
  for (size_t done = 0; done < bytes;) {
    if (ring_->used == ring_->size) synchronize();
    const size_t count = std::min(bytes - done, ring_->size - ring_->used);
    std::byte* staged = static_cast<std::byte*>(ring_->data) + ring_->used;
    std::memcpy(staged, static_cast<const std::byte*>(from) + done, count);
    check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, staged, count,
                               cudaMemcpyHostToDevice, stream_),
               "copying to the GPU");
    ring_->used += count;
    done += count;
  }
}

void CudaDevice::copy(void* to, const void* from, size_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
             "copying on the GPU");
}

void CudaDevice::clear(void* to, size_t bytes) {
  check_cuda(cudaMemsetAsync(to, 0, bytes, stream_), "clearing memory");
}

void CudaDevice::download(void* to, const void* from, size_t bytes) {
  take();
  if (!landing_ || landing_->size < bytes) {
    landing_.reset();
    landing_ = std::make_unique<Pinned>(bytes + bytes / 4);
  }
  check_cuda(cudaMemcpyAsync(landing_->data, from, bytes, cudaMemcpyDeviceToHost, stream_),
             "copying from the GPU");
  synchronize();
  std::memcpy(to, landing_->data, bytes);
}

void CudaDevice::check() {
  free_memory();
  synchronize();
}

void CudaDevice::synchronize() {
  check_cuda(cudaStreamSynchronize(stream_), "waiting for the kernels");
  ring_->used = 0;
}

void CudaDevice::fill(void* to, size_t bytes, size_t granule, const Make& make) {
  take();
  const size_t piece = std::max<size_t>(1, kPieceBytes / granule) * granule;
  if (piece > kPieceBytes) throw std::invalid_argument("a granule is larger than a piece");
  const std::lock_guard lock(fill_mutex_);
  const auto pieces = static_cast<int64_t>((bytes + piece - 1) / piece);
  const auto lane = [this](int thread) -> Lane& {
    if (!lanes_[thread]) lanes_[thread] = std::make_unique<Lane>();
    return *lanes_[thread];
  };
  if (!fill_pool_) {
    const int threads =
        std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostFillThreads);
    fill_pool_ = std::make_unique<ThreadPool>(threads);
    lanes_.resize(threads);
  }
  std::mutex failed_mutex;
  std::exception_ptr failed;
  fill_pool_->run(pieces, [&](int64_t item, int thread) {
    try {
      take();
      const size_t offset = static_cast<size_t>(item) * piece;
      lane(thread).send(to, std::min(piece, bytes - offset), offset, make);
    } catch (...) {
      const std::lock_guard guard(failed_mutex);
      failed = std::current_exception();
    }
  });
  for (const std::unique_ptr<Lane>& used : lanes_) {
    if (used) check_cuda(cudaStreamSynchronize(used->stream), "copying to the GPU");
  }
  if (failed) std::rethrow_exception(failed);
}

void CudaDevice::run_recorded(uint64_t key, const std::function<void()>& work) {
  take();
  if (recordings_stale_.exchange(false)) forget_recordings();
  Recording& recording = recordings_[key];
  // The first run sizes scratch memory and loads kernels, which a recording may not.
  if (!graphs_on_ || ++recording.seen == 1) {
    work();
    return;
  }
  if (!recording.graph) {
    const std::lock_guard lock(recording_mutex_);
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
               "recording a step");
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      if (graph) cudaGraphDestroy(graph);
      throw;
    }
    check_cuda(cudaStreamEndCapture(stream_, &graph), "recording a step");
    const cudaError_t made = cudaGraphInstantiate(&recording.graph, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(made, "recording a step");
  }
  check_cuda(cudaGraphLaunch(recording.graph, stream_), "running a recorded step");
  if (recordings_.size() > kMostRecordings) {
    synchronize();
    forget_recordings();
  }
}

void CudaDevice::forget_recordings() {
  for (auto& [key, recording] : recordings_) {
    if (recording.graph) cudaGraphExecDestroy(recording.graph);
  }
  recordings_.clear();
}

}  // namespace lk
