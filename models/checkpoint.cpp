#include "models/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "kernels/status.h"
#include "models/json.h"

namespace strata {

namespace {

constexpr uint64_t kMaxHeaderBytes = 100u << 20;
constexpr int kHeaderDepth = 8;

// A read-only mapping of a whole file.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& file) {
    // O_NONBLOCK: a pipe in a file's place is refused below, not waited for.
    const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
      Fail(ErrorCode::kModelFile,
           fmt::format("{} cannot be opened: {}", file.string(), std::strerror(errno)));
    }
    struct stat info {};
    if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
      close(descriptor);
      Fail(ErrorCode::kModelFile, fmt::format("{} is not a regular file", file.string()));
    }
    bytes_ = static_cast<size_t>(info.st_size);
    if (bytes_ > 0) {
      void* data = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (data != MAP_FAILED) data_ = static_cast<const std::byte*>(data);
    }
    const int reason = errno;
    close(descriptor);
    if (bytes_ > 0 && data_ == nullptr) {
      Fail(ErrorCode::kModelFile,
           fmt::format("{} cannot be mapped: {}", file.string(), std::strerror(reason)));
    }
  }
  Mapping(Mapping&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
  }
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), bytes_);
  }
  const std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Types a header may name. Those Strata cannot compute with are listed, and refused when a layer
// asks for one.
struct StoredType {
  const char* name;
  int64_t bytes;
  bool usable;
  DType dtype;
};
constexpr StoredType kStoredTypes[] = {
    {"F32", 4, true, DType::kF32},          {"BF16", 2, true, DType::kBf16},
    {"F8_E4M3", 1, true, DType::kFp8E4M3},  {"I32", 4, true, DType::kI32},
    {"I8", 1, true, DType::kInt8},          {"F16", 2, false, DType::kBf16},
    {"F64", 8, false, DType::kF32},         {"I64", 8, false, DType::kI32},
    {"I16", 2, false, DType::kI32},         {"U8", 1, false, DType::kInt8},
    {"U16", 2, false, DType::kI32},         {"U32", 4, false, DType::kI32},
    {"U64", 8, false, DType::kI32},         {"BOOL", 1, false, DType::kInt8},
    {"F8_E5M2", 1, false, DType::kFp8E4M3}, {"F8_E8M0", 1, false, DType::kFp8E4M3}};

const StoredType* FindStoredType(const std::string& name) {
  for (const StoredType& type : kStoredTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

std::string ShapeText(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

struct StoredTensor {
  TensorRef ref;
  uint64_t begin = 0;  // byte in the file's data section
  const StoredType* type = nullptr;
  std::string file;
};

[[noreturn]] void RefuseTensor(const std::string& file, const std::string& name,
                               const std::string& what) {
  Fail(ErrorCode::kModelFile,
       fmt::format("{}: tensor {} {}; the file is damaged or not a safetensors file", file, name,
                   what));
}

StoredTensor ReadEntry(const std::string& file, const std::string& name,
                       const nlohmann::ordered_json& entry, size_t data_bytes) {
  if (!entry.is_object()) RefuseTensor(file, name, "has no description");
  const JsonFields fields(entry, fmt::format("{}: tensor {}", file, name), ErrorCode::kModelFile);
  StoredTensor tensor;
  tensor.file = file;
  tensor.ref.name = name;
  const std::string type_name = fields.String("dtype").value_or("");
  tensor.type = FindStoredType(type_name);
  if (tensor.type == nullptr)
    RefuseTensor(file, name, fmt::format("has the unknown dtype '{}'", type_name));
  tensor.ref.dtype = tensor.type->dtype;
  const nlohmann::ordered_json* shape = fields.Find("shape");
  const nlohmann::ordered_json* offsets = fields.Find("data_offsets");
  if (shape == nullptr) RefuseTensor(file, name, "has no shape");
  if (!shape->is_array() || shape->size() > 8)
    RefuseTensor(file, name, fmt::format("has the shape {}", ShortJson(*shape)));
  if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    RefuseTensor(file, name,
                 offsets == nullptr ? "has no data_offsets"
                                    : fmt::format("has the data_offsets {}", ShortJson(*offsets)));
  }
  uint64_t elements = 1;
  for (const auto& extent : *shape) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > (uint64_t{1} << 40)) {
      RefuseTensor(file, name, fmt::format("has the shape {}", ShortJson(*shape)));
    }
    const uint64_t value = extent.get<uint64_t>();
    if (value != 0 && elements > (uint64_t{1} << 48) / value) {
      RefuseTensor(file, name, fmt::format("has the impossible shape {}", ShortJson(*shape)));
    }
    elements *= value;
    tensor.ref.shape.push_back(static_cast<int64_t>(value));
  }
  const uint64_t begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    Fail(ErrorCode::kModelFile, fmt::format("{}: tensor {} lies at bytes {} to {} of {}: the file "
                                            "is truncated or damaged; fetch it again",
                                            file, name, begin, end, data_bytes));
  }
  if (end - begin != elements * static_cast<uint64_t>(tensor.type->bytes)) {
    RefuseTensor(file, name,
                 fmt::format("of shape {} and dtype {} has {} bytes, {} are needed",
                             ShapeText(tensor.ref.shape), type_name, end - begin,
                             elements * static_cast<uint64_t>(tensor.type->bytes)));
  }
  tensor.begin = begin;
  tensor.ref.bytes = end - begin;
  return tensor;
}

}  // namespace

struct Checkpoint::Impl {
  std::string where;
  std::vector<Mapping> mappings;
  std::map<std::string, StoredTensor> tensors;
  std::vector<std::unique_ptr<std::byte[]>> aligned_copies;

  void AddFile(const std::filesystem::path& path) {
    const std::string file = path.string();
    mappings.emplace_back(path);
    const Mapping& mapping = mappings.back();
    uint64_t header_bytes = 0;
    if (mapping.bytes() < sizeof(header_bytes)) {
      Fail(ErrorCode::kModelFile,
           fmt::format("{} has {} bytes, too few for a safetensors file", file, mapping.bytes()));
    }
    std::memcpy(&header_bytes, mapping.data(), sizeof(header_bytes));
    if (header_bytes > kMaxHeaderBytes || header_bytes > mapping.bytes() - sizeof(header_bytes)) {
      Fail(ErrorCode::kModelFile, fmt::format("{}: the header claims {} bytes, the file has {}: "
                                              "truncated, or not a safetensors file",
                                              file, header_bytes, mapping.bytes()));
    }
    const std::byte* base = mapping.data() + sizeof(header_bytes) + header_bytes;
    const size_t data_bytes = mapping.bytes() - sizeof(header_bytes) - header_bytes;
    const std::string_view text(
        reinterpret_cast<const char*>(mapping.data()) + sizeof(header_bytes), header_bytes);
    const nlohmann::ordered_json header = ParseJson(text, file + " (header)", kHeaderDepth);
    if (!header.is_object())
      Fail(ErrorCode::kModelFile, fmt::format("{}: the header is not an object", file));
    std::vector<StoredTensor> entries;
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") entries.push_back(ReadEntry(file, name, entry, data_bytes));
    }
    std::sort(entries.begin(), entries.end(), [](const StoredTensor& a, const StoredTensor& b) {
      return std::pair(a.begin, a.ref.bytes) < std::pair(b.begin, b.ref.bytes);
    });
    // In file order: no two may share a byte, so that copies for alignment stay below the file's
    // size.
    const StoredTensor* previous = nullptr;
    for (StoredTensor& tensor : entries) {
      if (previous != nullptr && tensor.begin < previous->begin + previous->ref.bytes) {
        Fail(ErrorCode::kModelFile,
             fmt::format("{}: tensors {} and {} overlap at byte {}; the file is damaged", file,
                         previous->ref.name, tensor.ref.name, tensor.begin));
      }
      tensor.ref.data = base + tensor.begin;
      Align(tensor);
      previous = &tensor;
    }
    for (StoredTensor& tensor : entries) {
      const std::string name = tensor.ref.name;
      const auto [existing, added] = tensors.emplace(name, std::move(tensor));
      if (!added) {
        Fail(ErrorCode::kModelFile,
             fmt::format("tensor {} is in {} and in {}", name, existing->second.file, file));
      }
    }
  }

  // Kernels read fp32 through pointers: what the file puts at an odd address is copied once.
  void Align(StoredTensor& tensor) {
    const auto address = reinterpret_cast<uintptr_t>(tensor.ref.data);
    if (address % static_cast<uintptr_t>(tensor.type->bytes) == 0) return;
    aligned_copies.push_back(std::make_unique<std::byte[]>(tensor.ref.bytes));
    std::memcpy(aligned_copies.back().get(), tensor.ref.data, tensor.ref.bytes);
    tensor.ref.data = aligned_copies.back().get();
  }
};

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::OpenFile(const std::filesystem::path& file) {
  auto impl = std::make_unique<Impl>();
  impl->where = file.string();
  impl->AddFile(file);
  return Checkpoint(std::move(impl));
}

Checkpoint Checkpoint::Open(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    Fail(ErrorCode::kModelFile,
         fmt::format("{} is not a directory; a model is a folder with config.json and "
                     "safetensors files",
                     directory.string()));
  }
  const std::filesystem::path index_file = directory / "model.safetensors.index.json";
  if (!std::filesystem::exists(index_file, error)) {
    const std::filesystem::path single = directory / "model.safetensors";
    if (!std::filesystem::exists(single, error)) {
      Fail(ErrorCode::kModelFile,
           fmt::format("{} has neither model.safetensors nor model.safetensors.index.json",
                       directory.string()));
    }
    return OpenFile(single);
  }
  const std::string index_name = index_file.string();
  const nlohmann::ordered_json index = ParseJson(ReadTextFile(index_file), index_name);
  const JsonFields fields(index, index_name, ErrorCode::kModelFile);
  const nlohmann::ordered_json* weight_map = fields.Find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object())
    fields.Refuse("weight_map", "an object of tensor names is needed");
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map->items()) {
    if (!shard.is_string() || shard.get<std::string>().find('/') != std::string::npos) {
      Fail(ErrorCode::kModelFile,
           fmt::format("{}: tensor {} is mapped to {}, a file name is needed", index_name, name,
                       ShortJson(shard)));
    }
    shards.insert(shard.get<std::string>());
  }
  auto impl = std::make_unique<Impl>();
  impl->where = directory.string();
  for (const std::string& shard : shards) {
    if (!std::filesystem::exists(directory / shard, error)) {
      Fail(ErrorCode::kModelFile, fmt::format("{} names the shard {}, which is not in {}; fetch it",
                                              index_name, shard, directory.string()));
    }
    impl->AddFile(directory / shard);
  }
  for (const auto& [name, shard] : weight_map->items()) {
    const std::string shard_name = shard.get<std::string>();
    const auto found = impl->tensors.find(name);
    if (found == impl->tensors.end()) {
      Fail(ErrorCode::kModelFile, fmt::format("{} says tensor {} is in {}, but no shard has it",
                                              index_name, name, shard_name));
    }
    if (found->second.file != (directory / shard_name).string()) {
      Fail(ErrorCode::kModelFile, fmt::format("{} says tensor {} is in {}, but it is in {}",
                                              index_name, name, shard_name, found->second.file));
    }
  }
  return Checkpoint(std::move(impl));
}

const TensorRef* Checkpoint::Find(const std::string& name) const {
  const auto found = impl_->tensors.find(name);
  return found == impl_->tensors.end() ? nullptr : &found->second.ref;
}

std::vector<std::string> Checkpoint::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : impl_->tensors) names.push_back(name);
  return names;
}

size_t Checkpoint::total_bytes() const {
  size_t total = 0;
  for (const auto& [name, tensor] : impl_->tensors) total += tensor.ref.bytes;
  return total;
}

const TensorRef& Checkpoint::Need(const std::string& name, std::span<const int64_t> shape) const {
  const auto found = impl_->tensors.find(name);
  if (found == impl_->tensors.end()) {
    Fail(ErrorCode::kModelFile,
         fmt::format("tensor {} {} is missing from {}", name, ShapeText(shape), impl_->where));
  }
  const StoredTensor& tensor = found->second;
  if (!std::equal(shape.begin(), shape.end(), tensor.ref.shape.begin(), tensor.ref.shape.end())) {
    Fail(ErrorCode::kModelFile,
         fmt::format("tensor {} is {} in {}, config.json says {}; wrong config.json?", name,
                     ShapeText(tensor.ref.shape), tensor.file, ShapeText(shape)));
  }
  if (!tensor.type->usable) {
    Fail(ErrorCode::kModelFile,
         fmt::format("tensor {} is stored as {}; F32, BF16 and F8_E4M3 weights are served", name,
                     tensor.type->name));
  }
  return tensor.ref;
}

Matrix Checkpoint::NeedMatrix(const std::string& name, int64_t rows, int64_t cols) const {
  const int64_t shape[2] = {rows, cols};
  const TensorRef& tensor = Need(name, shape);
  Matrix matrix{
      .data = tensor.data, .dtype = tensor.dtype, .rows = rows, .cols = cols, .row_stride = cols};
  if (tensor.dtype == DType::kFp8E4M3) {
    const int64_t scale_shape[2] = {(rows + kWeightScaleBlock - 1) / kWeightScaleBlock,
                                    (cols + kWeightScaleBlock - 1) / kWeightScaleBlock};
    const std::string scale_name = name + "_scale_inv";
    const TensorRef& scales = Need(scale_name, scale_shape);
    if (scales.dtype != DType::kF32) {
      Fail(ErrorCode::kModelFile, fmt::format("tensor {} is {}, block scales are fp32", scale_name,
                                              DTypeName(scales.dtype)));
    }
    matrix.scales = reinterpret_cast<const float*>(scales.data);
    matrix.scale_stride = scale_shape[1];
  } else if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kBf16) {
    Fail(ErrorCode::kModelFile,
         fmt::format("tensor {} is {}; F32, BF16 and F8_E4M3 weights are served", name,
                     DTypeName(tensor.dtype)));
  }
  return matrix;
}

std::vector<float> Checkpoint::NeedFloats(const std::string& name,
                                          std::span<const int64_t> shape) const {
  const TensorRef& tensor = Need(name, shape);
  std::vector<float> values(tensor.bytes / static_cast<size_t>(DTypeBytes(tensor.dtype)));
  if (tensor.dtype == DType::kF32) {
    std::memcpy(values.data(), tensor.data, tensor.bytes);
  } else if (tensor.dtype == DType::kBf16) {
    const uint16_t* source = reinterpret_cast<const uint16_t*>(tensor.data);
    for (size_t i = 0; i < values.size(); ++i) values[i] = Bf16ToFloat(source[i]);
  } else {
    Fail(ErrorCode::kModelFile,
         fmt::format("tensor {} is {}, F32 or BF16 is needed", name, DTypeName(tensor.dtype)));
  }
  return values;
}

void WriteSafetensors(const std::filesystem::path& file, std::span<const TensorToWrite> tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  size_t offset = 0;
  std::vector<size_t> sizes;
  for (const TensorToWrite& tensor : tensors) {
    size_t bytes = static_cast<size_t>(DTypeBytes(tensor.dtype));
    for (int64_t extent : tensor.shape) bytes *= static_cast<size_t>(extent);
    const char* type_name = nullptr;
    for (const StoredType& type : kStoredTypes) {
      if (type.usable && type.dtype == tensor.dtype) type_name = type.name;
    }
    header[tensor.name] = {
        {"dtype", type_name}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
    sizes.push_back(bytes);
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t header_bytes = text.size();
  // A file appears whole or not at all. Links, pipes and devices stay what they are: they are
  // written through, never replaced.
  std::error_code error;
  const std::filesystem::file_type type = std::filesystem::symlink_status(file, error).type();
  const bool replaces =
      type == std::filesystem::file_type::not_found || type == std::filesystem::file_type::regular;
  const std::filesystem::path partial =
      replaces ? std::filesystem::path(file.string() + ".partial") : file;
  {
    std::ofstream stream(partial, std::ios::binary | std::ios::trunc);
    stream.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
    stream.write(text.data(), static_cast<std::streamsize>(text.size()));
    for (size_t i = 0; i < tensors.size(); ++i) {
      stream.write(static_cast<const char*>(tensors[i].data),
                   static_cast<std::streamsize>(sizes[i]));
    }
    stream.close();
    if (!stream) {
      const int reason = errno;
      if (replaces) std::filesystem::remove(partial, error);
      Fail(ErrorCode::kModelFile,
           fmt::format("{} cannot be written: {}", file.string(), std::strerror(reason)));
    }
  }
  if (!replaces) return;
  std::filesystem::rename(partial, file, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    Fail(ErrorCode::kModelFile,
         fmt::format("{} cannot be written: {}", file.string(), error.message()));
  }
}

}  // namespace strata
