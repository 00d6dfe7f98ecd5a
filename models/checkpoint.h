// Safetensors folders, memory-mapped: nothing is copied until a layer asks for its tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/linear.h"

namespace strata {

// One tensor of a file: raw bytes inside the mapping, which lives as long as the Checkpoint.
struct TensorRef {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// All shards of a folder. Thread-safe after Open().
class Checkpoint {
 public:
  // Opens model.safetensors or every shard that model.safetensors.index.json names.
  // Fail(kModelFile) names the file and what is wrong: truncated, bad header, offsets that overlap
  // or leave the file, shards missing, a tensor in no shard.
  static Checkpoint Open(const std::filesystem::path& directory);
  // A single .safetensors file.
  static Checkpoint OpenFile(const std::filesystem::path& file);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const TensorRef* Find(const std::string& name) const;  // null when absent
  std::vector<std::string> Names() const;                // sorted
  size_t total_bytes() const;                            // of all tensors

  // The tensor with exactly this shape. Fail(kModelFile): "model.norm.weight is missing from DIR"
  // or
  // "... is [128, 7168], config.json says [128, 6144]; wrong config.json?".
  const TensorRef& Need(const std::string& name, std::span<const int64_t> shape) const;

  // A 2-D weight as Linear takes it, in its stored type (fp8 with `<name>_scale_inv`
  // [ceil(rows/128), ceil(cols/128)] fp32).
  Matrix NeedMatrix(const std::string& name, int64_t rows, int64_t cols) const;
  // Any fp32 / bf16 tensor converted to fp32.
  std::vector<float> NeedFloats(const std::string& name, std::span<const int64_t> shape) const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Writes a .safetensors file (tensors in the order given, metadata "format": "pt"). Writes to a
// temporary name first.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};
void WriteSafetensors(const std::filesystem::path& file, std::span<const TensorToWrite> tensors);

}  // namespace strata
