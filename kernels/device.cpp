#include "kernels/device.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cpu/isa.h"
#include "kernels/status.h"

namespace strata {

namespace {

constexpr size_t kAlignment = 64;

class CpuGraph : public Graph {
 public:
  explicit CpuGraph(std::function<void(Stream)> body) : body_(std::move(body)) {}
  void Replay(Stream stream) override { body_(stream); }

 private:
  std::function<void(Stream)> body_;
};

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(int threads) : pool_(threads > 0 ? threads : UsableCores()) {
    info_.name = fmt::format("cpu ({}, {} thread{})", cpu::IsaName(cpu::ChosenIsa()),
                             pool_.threads(), pool_.threads() == 1 ? "" : "s");
    info_.memory_bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  }

  Buffer Allocate(size_t bytes) override {
    if (bytes == 0) bytes = kAlignment;
    // Anonymous pages: zero-filled, and resident only once touched.
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      Fail(ErrorCode::kCapacity,
           fmt::format("cannot reserve {} bytes of memory; lower --max-context", bytes));
    }
    return Buffer(static_cast<std::byte*>(data), bytes,
                  [](std::byte* base, size_t size) { munmap(base, size); });
  }

  Stream DefaultStream() override { return Stream{Device{DeviceKind::kCpu, 0}, &pool_, nullptr}; }

  std::unique_ptr<Graph> Capture(Stream, const std::function<void(Stream)>& body) override {
    return std::make_unique<CpuGraph>(body);
  }

  void Synchronize(Stream) override {}
  const DeviceInfo& Info() const override { return info_; }

 private:
  ThreadPool pool_;
  DeviceInfo info_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(int threads) {
  return std::make_unique<CpuBackend>(threads);
}

void* Arena::TakeBytes(size_t bytes) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (used_ + rounded > buffer_.bytes()) {
    Fail(ErrorCode::kInternal,
         fmt::format("arena of {} bytes has {} in use, {} more were asked for", buffer_.bytes(),
                     used_, rounded));
  }
  void* data = buffer_.data() + used_;
  used_ += rounded;
  return data;
}

}  // namespace strata
