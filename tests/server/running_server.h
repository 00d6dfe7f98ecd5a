// A server of its own process on a free port of the loopback, and clients for it.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace strata {

using Json = nlohmann::ordered_json;

// A sanitizer keeps freed memory for a while.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class RunningServer {
 public:
  explicit RunningServer(std::vector<std::string> flags = {},
                         std::vector<std::string> environment = {}) {
    int log[2];
    if (pipe(log) != 0) throw std::runtime_error("pipe");
    std::vector<std::string> words = {std::string(STRATA_BINARY_DIR) + "/tools/strata", "--serve"};
    words.insert(words.end(), flags.begin(), flags.end());
    if (std::find(flags.begin(), flags.end(), "--port") == flags.end())
      words.insert(words.end(), {"--port", "0"});
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    process_ = fork();
    if (process_ == 0) {
      dup2(log[1], STDERR_FILENO);
      dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
      close(log[0]);
      close(log[1]);
      for (std::string& variable : environment) putenv(variable.data());
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(log[1]);
    reader_ = std::thread([this, fd = log[0]] { ReadLog(fd); });
    AwaitReady();
  }
  ~RunningServer() {
    if (process_ > 0) Signal(SIGKILL), Wait();
  }

  void Signal(int signal) { kill(process_, signal); }
  // The exit code, or 128 + the signal that ended it.
  int Wait() {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    if (reader_.joinable()) reader_.join();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int Stop() {
    Signal(SIGTERM);
    return Wait();
  }
  int port() const { return port_; }
  pid_t process() const { return process_; }
  std::string log() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return log_;
  }

  httplib::Client Client() const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(1200, 0);
    return client;
  }
  struct Reply {
    int status = 0;
    std::string body;
    httplib::Headers headers;
    Json json() const { return Json::parse(body); }
    std::string error() const { return json()["error"]["message"]; }
    std::string param() const {
      const Json value = json()["error"]["param"];
      return value.is_string() ? value.get<std::string>() : "";
    }
  };
  Reply Get(const std::string& path, const httplib::Headers& headers = {}) const {
    return Convert(Client().Get(path, headers));
  }
  Reply PostText(const std::string& path, const std::string& body,
                 const httplib::Headers& headers = {}) const {
    return Convert(Client().Post(path, headers, body, "application/json"));
  }
  Reply Post(const std::string& path, const Json& body) const {
    return PostText(path, body.dump());
  }

  // The data of each event of a stream, "[DONE]" included, and everything that was sent.
  struct Stream {
    std::vector<std::string> data;
    std::string raw;
    std::vector<Json> chunks() const {
      std::vector<Json> parsed;
      for (const std::string& entry : data) {
        if (entry != "[DONE]") parsed.push_back(Json::parse(entry));
      }
      return parsed;
    }
    // Of the first choice: its text, or its reasoning.
    std::string Text(const char* field = "content") const {
      std::string text;
      for (const Json& chunk : chunks()) {
        if (chunk.value("choices", Json::array()).empty()) continue;
        const Json& choice = chunk["choices"][0];
        if (choice.contains("text")) text += choice["text"].get<std::string>();
        if (choice.contains("delta") && choice["delta"].contains(field))
          text += choice["delta"][field].get<std::string>();
      }
      return text;
    }
    std::string finish() const {
      for (const Json& chunk : chunks()) {
        if (chunk.value("choices", Json::array()).empty()) continue;
        const Json& reason = chunk["choices"][0]["finish_reason"];
        if (reason.is_string()) return reason;
      }
      return "";
    }
  };
  Stream PostStream(const std::string& path, Json body) const {
    body["stream"] = true;
    const Reply reply = Post(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Parse(reply.body);
  }
  static Stream Parse(const std::string& raw) {
    Stream stream;
    stream.raw = raw;
    size_t at = 0;
    while (at < raw.size()) {
      const size_t end = raw.find("\n\n", at);
      EXPECT_NE(end, raw.npos) << "an event has no end: " << raw.substr(at);
      if (end == raw.npos) break;
      const std::string event = raw.substr(at, end - at);
      const size_t data = event.find("data: ");
      if (event.rfind(":", 0) != 0 && data != event.npos)
        stream.data.push_back(event.substr(data + 6));
      at = end + 2;
    }
    return stream;
  }

  // What the server's process holds now.
  int64_t ResidentKib() const { return ProcessFact("VmRSS:"); }
  int64_t AddressSpaceKib() const { return ProcessFact("VmSize:"); }
  int64_t Threads() const { return ProcessFact("Threads:"); }
  int64_t OpenFiles() const {
    const std::filesystem::directory_iterator files("/proc/" + std::to_string(process_) + "/fd");
    return std::distance(begin(files), end(files));
  }

  // Requests that run or wait now.
  int64_t open() const {
    const Json status = Get("/v1/status").json();
    return status["running"].get<int64_t>() + status["waiting"].get<int64_t>();
  }
  // Whether the condition comes true soon.
  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 1000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  static Reply Convert(const httplib::Result& result) {
    Reply reply;
    if (!result) return reply;
    reply.status = result->status;
    reply.body = result->body;
    reply.headers = result->headers;
    return reply;
  }
  int64_t ProcessFact(const std::string& name) const {
    std::ifstream status("/proc/" + std::to_string(process_) + "/status");
    std::string line;
    while (std::getline(status, line)) {
      if (line.rfind(name, 0) == 0) return std::stoll(line.substr(name.size()));
    }
    return -1;
  }
  void ReadLog(int fd) {
    char piece[4096];
    ssize_t got;
    while ((got = read(fd, piece, sizeof piece)) > 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      log_.append(piece, static_cast<size_t>(got));
    }
    close(fd);
  }
  void AwaitReady() {
    const std::string mark = "ready at http://";
    for (int i = 0; i < 6000; ++i) {
      const std::string text = log();
      const size_t found = text.find(mark);
      if (found != text.npos && text.find('\n', found) != text.npos) {
        const size_t colon = text.find(':', found + mark.size());
        port_ = std::atoi(text.c_str() + colon + 1);
        return;
      }
      int status;
      if (waitpid(process_, &status, WNOHANG) == process_) {
        process_ = -1;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (process_ > 0) Signal(SIGKILL), Wait();
    if (reader_.joinable()) reader_.join();
    throw std::runtime_error("the server did not get ready: " + log());
  }

  pid_t process_ = -1;
  int port_ = 0;
  std::mutex mutex_;
  std::string log_;
  std::thread reader_;
};

// A bare connection, for what no client library would send.
class RawConnection {
 public:
  explicit RawConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawConnection() { Close(); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  bool connected() const { return connected_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // False when the peer has gone.
  bool Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t count = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return false;
      sent += static_cast<size_t>(count);
    }
    return true;
  }
  // Until `wanted` was read, the peer closes, or nothing comes for the time.
  std::string Read(const std::string& wanted = "", int milliseconds = 20'000) {
    std::string text;
    char piece[4096];
    pollfd entry{fd_, POLLIN, 0};
    while ((wanted.empty() || text.find(wanted) == text.npos) &&
           poll(&entry, 1, milliseconds) > 0) {
      const ssize_t got = recv(fd_, piece, sizeof piece, 0);
      if (got <= 0) break;
      text.append(piece, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  int fd_;
  bool connected_ = false;
};

inline std::string PostText(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// {"messages": [one user message], ...}, greedy, of a bounded length.
inline Json ChatBody(const std::string& text, int max_tokens = 16) {
  return {{"messages", Json::array({{{"role", "user"}, {"content", text}}})},
          {"temperature", 0},
          {"max_tokens", max_tokens}};
}

}  // namespace strata
