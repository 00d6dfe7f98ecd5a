#include "server/conversation_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "kernels/paged.h"
#include "kernels/status.h"
#include "server/api_error.h"

namespace strata {

namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;  // copied between two steps
constexpr size_t kMaxNameBytes = 128;
constexpr int64_t kMaxTokens = int64_t{1} << 32;

// Then the tokens, then a checksum of both, then the pages, each with a checksum of its own.
struct Header {
  char magic[16] = "strata cache 1";
  uint64_t identity = 0;
  int32_t kv_format = 0;
  int32_t sm = 0;  // of the device that computed the pages
  int64_t page_bytes = 0;
  int64_t tokens = 0;  // a multiple of kPageCells
};

// A file that is closed at the end. Both transfers give false for less than everything.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool open() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  bool Write(const void* from, size_t bytes) const {
    return Move(bytes, [&](size_t done) {
      return ::write(fd_, static_cast<const char*>(from) + done, bytes - done);
    });
  }
  bool Read(void* to, size_t bytes) const {
    return Move(bytes, [&](size_t done) {
      return ::read(fd_, static_cast<char*>(to) + done, bytes - done);
    });
  }

 private:
  template <class Once>
  static bool Move(size_t bytes, const Once& once) {
    for (size_t done = 0; done < bytes;) {
      const ssize_t count = once(done);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      done += static_cast<size_t>(count);
    }
    return true;
  }
  const int fd_;
};

[[noreturn]] void Refuse(int status, const std::string& message, const char* code) {
  throw ApiError(status, message, "filename", code);
}

void CheckName(const std::string& name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
  if (plain && !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.') return;
  Refuse(400,
         fmt::format("filename is '{}', 1 to {} letters, digits, '-', '_' and '.' are wanted, the "
                     "first no '.'",
                     name.substr(0, 100), kMaxNameBytes),
         "bad_name");
}

uint64_t HashOf(const Header& header, std::span<const int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(),
                              XXH3_64bits(&header, sizeof header));
}
uint64_t HashOf(std::span<const std::byte> page, int64_t index, uint64_t head) {
  return XXH3_64bits_withSeed(page.data(), page.size(), head + static_cast<uint64_t>(index));
}

// What a file of this engine's pages says in front.
Header HeaderOf(Engine& engine, uint64_t identity) {
  Header header;
  header.identity = identity;
  header.kv_format = static_cast<int32_t>(engine.runner().options().kv_format);
  header.sm = engine.runner().backend().Info().sm;
  header.page_bytes = static_cast<int64_t>(engine.prefix_pages().page_bytes());
  return header;
}

int64_t FileBytes(const Header& header) {
  const int64_t pages = header.tokens / kPageCells;
  const int64_t checksum = sizeof(uint64_t);
  return static_cast<int64_t>(sizeof header) + header.tokens * 4 + checksum +
         pages * (header.page_bytes + checksum);
}

int64_t PiecePages(int64_t page_bytes) {
  return std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes) / page_bytes);
}

}  // namespace

ConversationStore::ConversationStore(const std::filesystem::path& folder,
                                     const std::string& identity)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
      identity_(XXH3_64bits(identity.data(), identity.size())) {
  if (folder_ >= 0 && faccessat(folder_, ".", W_OK | X_OK, 0) == 0) return;
  const std::string reason = std::strerror(errno);
  if (folder_ >= 0) close(folder_);
  Fail(ErrorCode::kUsage, fmt::format("--save-dir {}: {}; name a folder that can be written to",
                                      folder.string(), reason));
}

ConversationStore::~ConversationStore() { close(folder_); }

ConversationStore::Moved ConversationStore::Save(const std::string& name,
                                                 std::span<const int32_t> tokens,
                                                 EngineThread& engine) const {
  CheckName(name);
  Header header;
  int64_t pages = 0;
  engine.Do([&](Engine& owner) {
    header = HeaderOf(owner, identity_);
    pages = owner.prefix_pages().Read(tokens, 0, {});
  });
  if (pages == 0) {
    throw ApiError(400,
                   fmt::format("nothing is saved: the cache holds less than the first {} tokens of "
                               "this; have it answered first",
                               kPageCells),
                   "", "not_cached");
  }
  header.tokens = pages * kPageCells;
  tokens = tokens.first(static_cast<size_t>(header.tokens));

  static std::atomic<int64_t> counter = 0;
  const std::string draft = fmt::format(".{}.{}.{}", name, getpid(), counter++);
  const File file(
      openat(folder_, draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  try {
    const auto write = [&](const void* from, size_t bytes) {
      if (!file.open() || !file.Write(from, bytes))
        Refuse(500, fmt::format("the file cannot be written: {}", std::strerror(errno)), "no_file");
    };
    const uint64_t head = HashOf(header, tokens);
    write(&header, sizeof header);
    write(tokens.data(), tokens.size_bytes());
    write(&head, sizeof head);
    std::vector<std::byte> piece;
    const size_t page_bytes = static_cast<size_t>(header.page_bytes);
    for (int64_t first = 0; first < pages; first += PiecePages(header.page_bytes)) {
      const int64_t count = std::min(PiecePages(header.page_bytes), pages - first);
      piece.resize(static_cast<size_t>(count) * page_bytes);
      int64_t held = 0;
      engine.Do([&](Engine& owner) { held = owner.prefix_pages().Read(tokens, first, piece); });
      if (held < first + count)
        throw ApiError(503, "the cache gave the conversation up while it was saved; try again", "",
                       "evicted");
      for (int64_t i = 0; i < count; ++i) {
        const std::span<const std::byte> page(piece.data() + static_cast<size_t>(i) * page_bytes,
                                              page_bytes);
        const uint64_t hash = HashOf(page, first + i, head);
        write(page.data(), page.size());
        write(&hash, sizeof hash);
      }
    }
    if (fdatasync(file.fd()) != 0 || renameat(folder_, draft.c_str(), folder_, name.c_str()) != 0)
      Refuse(500, fmt::format("the file cannot be written: {}", std::strerror(errno)), "no_file");
  } catch (...) {
    unlinkat(folder_, draft.c_str(), 0);
    throw;
  }
  return {header.tokens, FileBytes(header)};
}

ConversationStore::Moved ConversationStore::Restore(const std::string& name,
                                                    EngineThread& engine) const {
  CheckName(name);
  const File file(openat(folder_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file.open() || fstat(file.fd(), &status) != 0 || !S_ISREG(status.st_mode))
    Refuse(404, fmt::format("no conversation is saved as '{}'", name), "not_saved");
  const auto damaged = [&] {
    Refuse(400, fmt::format("the file '{}' is cut or damaged", name), "save_damaged");
  };
  Header header, wanted;
  if (!file.Read(&header, sizeof header)) damaged();
  engine.Do([&](Engine& owner) { wanted = HeaderOf(owner, identity_); });
  const int64_t page_bytes = wanted.page_bytes;
  // All but the number of tokens must be the same.
  if (std::memcmp(&header, &wanted, offsetof(Header, tokens)) != 0) {
    Refuse(400,
           fmt::format("the file '{}' is of another model, cache format, device or version and is "
                       "of no use here",
                       name),
           "save_mismatch");
  }
  if (header.tokens < kPageCells || header.tokens > kMaxTokens || header.tokens % kPageCells != 0 ||
      status.st_size != FileBytes(header))
    damaged();
  std::vector<int32_t> tokens(static_cast<size_t>(header.tokens));
  uint64_t head = 0;
  if (!file.Read(tokens.data(), tokens.size() * sizeof(int32_t)) ||
      !file.Read(&head, sizeof head) || head != HashOf(header, tokens))
    damaged();
  const int64_t pages = header.tokens / kPageCells;
  std::vector<std::byte> piece;
  for (int64_t first = 0; first < pages; first += PiecePages(page_bytes)) {
    const int64_t count = std::min(PiecePages(page_bytes), pages - first);
    piece.resize(static_cast<size_t>(count * page_bytes));
    for (int64_t i = 0; i < count; ++i) {
      const std::span<std::byte> page(piece.data() + i * page_bytes,
                                      static_cast<size_t>(page_bytes));
      uint64_t hash = 0;
      if (!file.Read(page.data(), page.size()) || !file.Read(&hash, sizeof hash) ||
          hash != HashOf(page, first + i, head))
        damaged();
    }
    bool fits = false;
    engine.Do([&](Engine& owner) { fits = owner.prefix_pages().Write(tokens, first, piece); });
    if (!fits) return {first * kPageCells, FileBytes(header)};
  }
  return {header.tokens, FileBytes(header)};
}

}  // namespace strata
