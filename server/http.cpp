#include "server/http.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <httplib.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "kernels/status.h"

namespace strata {

namespace {

constexpr int kBacklog = 1024;

// What a client may choose as the name of its request.
bool PlainWord(const std::string& text) {
  return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' ||
           c == ':';
  });
}

bool Ready(int fd, short events, int milliseconds) {
  pollfd entry{fd, events, 0};
  int ready;
  do {
    ready = poll(&entry, 1, milliseconds);
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

// A connection with a budget of bytes: the library bounds neither the count nor the length of
// headers.
class Connection : public httplib::Stream {
 public:
  Connection(int fd, const HttpLimits& limits) : fd_(fd), limits_(limits) {}

  void StartRequest() {
    deadline_ = Clock::now() + std::chrono::seconds(limits_.read_seconds);
    in_headers_ = true;
    budget_ = limits_.header_bytes;
    over_budget_ = close_after_ = false;
  }
  void AllowBody(size_t bytes) {
    budget_ = bytes;
    in_headers_ = false;
  }
  bool over_budget() const { return over_budget_; }
  bool close_after() const { return close_after_; }
  void CloseAfter() { close_after_ = true; }
  bool Buffered() const { return begin_ < end_; }

  // False once the peer has closed its side.
  bool PeerIsThere() const {
    char byte;
    const ssize_t got = recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
  }

  bool is_readable() const override {
    return Buffered() || Ready(fd_, POLLIN, limits_.read_seconds * 1000);
  }
  bool is_writable() const override { return Ready(fd_, POLLOUT, 0) && PeerIsThere(); }

  ssize_t read(char* to, size_t size) override {
    if (begin_ == end_) {
      if (!Ready(fd_, POLLIN, PatienceMs())) return -1;
      const ssize_t got = recv(fd_, buffer_, sizeof buffer_, 0);
      if (got <= 0) return got;
      begin_ = 0;
      end_ = static_cast<size_t>(got);
    }
    const size_t count = std::min({size, end_ - begin_, budget_});
    if (count == 0 && size > 0) {
      over_budget_ = true;
      return -1;
    }
    std::memcpy(to, buffer_ + begin_, count);
    begin_ += count;
    budget_ -= count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* from, size_t size) override {
    size_t sent = 0;
    while (sent < size) {
      const ssize_t count = send(fd_, from + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0) {
        sent += static_cast<size_t>(count);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        if (!Ready(fd_, POLLOUT, limits_.write_seconds * 1000)) return -1;
      } else if (errno != EINTR) {
        return -1;
      }
    }
    return static_cast<ssize_t>(size);
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    Name(getpeername, ip, port);
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    Name(getsockname, ip, port);
  }
  socket_t socket() const override { return fd_; }

 private:
  using Clock = std::chrono::steady_clock;

  // Headers that trickle in must not hold a thread for ever.
  int PatienceMs() const {
    if (!in_headers_) return limits_.read_seconds * 1000;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
    return static_cast<int>(std::max<int64_t>(0, left.count()));
  }

  template <class Getter>
  void Name(Getter getter, std::string& ip, int& port) const {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    char host[NI_MAXHOST], service[NI_MAXSERV];
    if (getter(fd_, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
        getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof host, service,
                    sizeof service, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
      return;
    }
    ip = host;
    port = std::atoi(service);
  }

  const int fd_;
  const HttpLimits& limits_;
  char buffer_[16384];
  size_t begin_ = 0, end_ = 0;
  size_t budget_ = 0;
  Clock::time_point deadline_;
  bool in_headers_ = true;
  bool over_budget_ = false;
  bool close_after_ = false;
};

// The connection that this thread serves.
thread_local Connection* current_connection = nullptr;
// Set while the accepting thread turns a connection away.
thread_local bool turning_away = false;

// A thread per connection, reused, at most `limit`; connections that find none, here or in the
// system, are turned away at once by the accepting thread.
class ConnectionThreads : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(int limit) : limit_(static_cast<size_t>(limit)) {}

  void enqueue(std::function<void()> task) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (idle_ <= tasks_.size() && !AddThread()) {
      lock.unlock();
      turning_away = true;
      task();
      turning_away = false;
      return;
    }
    tasks_.push_back(std::move(task));
    lock.unlock();
    wake_.notify_one();
  }
  void shutdown() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  bool AddThread() {
    if (threads_.size() >= limit_) return false;
    try {
      threads_.emplace_back([this] { Work(); });
    } catch (const std::exception&) {  // the system has no thread, or no memory for one
      return false;
    }
    return true;
  }
  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      ++idle_;
      wake_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
      --idle_;
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  const size_t limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool ending_ = false;
};

class ChunkSink : public BodySink {
 public:
  explicit ChunkSink(httplib::DataSink& sink) : sink_(sink) {}
  bool Write(const std::string& bytes) override {
    // An empty chunk would end the body.
    if (bytes.empty()) return ClientIsThere();
    return ClientIsThere() && sink_.write(bytes.data(), bytes.size());
  }
  bool ClientIsThere() override {
    return current_connection == nullptr || current_connection->PeerIsThere();
  }

 private:
  httplib::DataSink& sink_;
};

HttpRequest Convert(const httplib::Request& from) {
  HttpRequest to;
  to.method = from.method;
  to.path = from.path;
  to.body = from.body;
  to.remote = from.remote_addr;
  to.id = from.get_header_value("X-Request-Id");
  if (!PlainWord(to.id)) to.id = FreshId();
  to.header = [&from](const char* name) { return from.get_header_value(name); };
  to.query = [&from](const char* name) { return from.get_param_value(name); };
  to.client_is_there = [] {
    return current_connection == nullptr || current_connection->PeerIsThere();
  };
  return to;
}

}  // namespace

std::string FreshId() {
  thread_local std::mt19937_64 random(std::random_device{}());
  return fmt::format("{:016x}", random());
}

class HttpServer::Impl : public httplib::Server {
 public:
  Impl(const HttpLimits& limits, HttpHooks hooks) : limits_(limits), hooks_(std::move(hooks)) {
    new_task_queue = [this] { return new ConnectionThreads(limits_.connections); };
    set_tcp_nodelay(true);
    set_payload_max_length(limits_.body_bytes);
    // The library's default would let a second server share the port.
    set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      return BeforeBody(request, response);
    });
    set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (response.body.empty()) PhraseError(response);
    });
    set_exception_handler(
        [this](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          Apply(hooks_.refuse(500, "the server failed on this request"), response);
        });
    const auto serve = [this](const httplib::Request& request, httplib::Response& response) {
      Dispatch(request, response);
    };
    // Unknown paths were refused before; what gets here is short and known.
    for (auto method : {&Impl::Get, &Impl::Options}) (this->*method)(".*", Handler(serve));
    Post(".*", Handler(serve));
    Put(".*", Handler(serve));
    Delete(".*", Handler(serve));
    Patch(".*", Handler(serve));
  }

  void Add(const std::string& method, const std::string& path, HttpServer::Handler handler) {
    routes_[path][method] = std::move(handler);
  }

  int Bind(const std::string& host, int port) {
    const int bound = port == 0 ? bind_to_any_port(host) : (bind_to_port(host, port) ? port : -1);
    if (bound < 0) {
      Fail(ErrorCode::kUsage,
           fmt::format("cannot listen on {}:{} ({}); choose another with --host and --port", host,
                       port, std::strerror(errno)));
    }
    // The library listens with a backlog of 5.
    ::listen(svr_sock_, kBacklog);
    return bound;
  }

  void AcceptUntilStopped() {
    if (!listen_after_bind())
      Fail(ErrorCode::kInternal, "the listening socket has failed; no connections are accepted");
  }

  void StopServing() {
    stopping_ = true;
    // The library's stop() forgets a call that comes before its loop has begun.
    const socket_t socket = svr_sock_.exchange(INVALID_SOCKET);
    if (socket == INVALID_SOCKET) return;
    shutdown(socket, SHUT_RDWR);
    close(socket);
  }

 private:
  bool process_and_close_socket(socket_t socket) override {
    if (turning_away) {
      TurnAway(socket);
      return false;
    }
    bool served = false;
    {
      Connection connection(socket, limits_);
      current_connection = &connection;
      while (!stopping_ && AwaitRequest(socket, connection)) {
        bool closed = false;
        connection.StartRequest();
        served = process_request(connection, stopping_, closed, [](httplib::Request& request) {
          request.ranges.clear();  // of no use to what is served here
        });
        if (!served || closed || connection.close_after()) break;
      }
      current_connection = nullptr;
    }
    // Lets the peer read the response before a reset could discard it.
    shutdown(socket, SHUT_WR);
    char rest[4096];
    for (int i = 0; i < 16 && Ready(socket, POLLIN, 50); ++i) {
      if (recv(socket, rest, sizeof rest, MSG_DONTWAIT) <= 0) break;
    }
    close(socket);
    return served;
  }

  bool AwaitRequest(socket_t socket, const Connection& connection) const {
    constexpr int kSlice = 100;  // milliseconds between looks at stopping_
    for (int waited = 0; waited < limits_.keep_alive_seconds * 1000; waited += kSlice) {
      if (connection.Buffered() || Ready(socket, POLLIN, kSlice)) return true;
      if (stopping_) return false;
    }
    return false;
  }

  void TurnAway(socket_t socket) {
    const std::string body =
        hooks_
            .refuse(503, fmt::format("no thread is free for this connection, at most {} are served "
                                     "at the same time",
                                     limits_.connections))
            .body;
    const std::string text = fmt::format(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: "
        "{}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{}",
        body.size(), body);
    send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    close(socket);
  }

  // Phrases what the library refused by itself.
  void PhraseError(httplib::Response& response) {
    int status = response.status;
    std::string message = "the request is not valid HTTP";
    if (current_connection != nullptr && current_connection->over_budget() && status == 400) {
      status = 431;
      message =
          fmt::format("request line and headers are longer than {} bytes", limits_.header_bytes);
    } else if (status == 413) {
      message = fmt::format("the body is longer than {} bytes", limits_.body_bytes);
    } else if (status == 414) {
      message = "the request line is too long";
    }
    if (current_connection != nullptr) current_connection->CloseAfter();
    response.set_header("Connection", "close");
    Apply(hooks_.refuse(status, message), response);
  }

  using Methods = std::map<std::string, HttpServer::Handler>;

  // Null: there is no such path.
  const Methods* MethodsOf(const std::string& path) const {
    if (const auto exact = routes_.find(path); exact != routes_.end()) return &exact->second;
    for (const auto& [route, methods] : routes_) {
      const std::string_view above = std::string_view(route).substr(0, route.size() - 1);
      if (route.ends_with("/*") && path.size() > above.size() && path.starts_with(above))
        return &methods;
    }
    return nullptr;
  }

  std::unique_ptr<HttpResponse> RefuseBody(const httplib::Request& request) {
    const auto refuse = [&](int status, const std::string& message) {
      return std::make_unique<HttpResponse>(hooks_.refuse(status, message));
    };
    const Methods* methods = MethodsOf(request.path);
    if (methods == nullptr)
      return refuse(404, fmt::format("there is no {}", request.path.substr(0, 200)));
    const std::string method = request.method == "HEAD" ? "GET" : request.method;
    if (!methods->contains(method)) {
      std::string allowed;
      for (const auto& [name, handler] : *methods) allowed += (allowed.empty() ? "" : ", ") + name;
      auto response =
          refuse(405, fmt::format("{} takes {}, not {}", request.path, allowed, request.method));
      response->headers.emplace_back("Allow", allowed);
      return response;
    }
    if (request.has_header("Transfer-Encoding"))
      return refuse(411, "a body needs a Content-Length; chunked bodies are not taken");
    if (request.has_header("Content-Encoding") &&
        request.get_header_value("Content-Encoding") != "identity")
      return refuse(415, "encoded bodies are not taken; send the JSON as it is");
    if (request.get_header_value("Content-Type").rfind("multipart/", 0) == 0)
      return refuse(415, "multipart bodies are not taken; send JSON");
    const size_t lengths = request.get_header_value_count("Content-Length");
    const std::string length = request.get_header_value("Content-Length");
    if (lengths > 1 || (lengths == 1 && (length.empty() || length.size() > 18 ||
                                         length.find_first_not_of("0123456789") != length.npos)))
      return refuse(400, "Content-Length is not one number");
    if (method == "POST" && lengths == 0) return refuse(411, "a body needs a Content-Length");
    if (lengths == 1 && std::stoull(length) > limits_.body_bytes)
      return refuse(413, fmt::format("the body has {} bytes, at most {} are taken", length,
                                     limits_.body_bytes));
    return nullptr;
  }

  HandlerResponse BeforeBody(const httplib::Request& request, httplib::Response& response) {
    const HttpRequest converted = Convert(request);
    std::unique_ptr<HttpResponse> refusal = hooks_.admit(converted);
    if (!refusal) refusal = RefuseBody(request);
    if (!refusal) {
      if (current_connection != nullptr) current_connection->AllowBody(limits_.body_bytes + 1);
      return HandlerResponse::Unhandled;
    }
    // The body stays unread, so the connection cannot go on.
    const std::string length = request.get_header_value("Content-Length");
    if ((!length.empty() && length != "0") || request.has_header("Transfer-Encoding")) {
      if (current_connection != nullptr) current_connection->CloseAfter();
      response.set_header("Connection", "close");
    }
    Send(converted, *refusal, response);
    return HandlerResponse::Handled;
  }

  void Dispatch(const httplib::Request& request, httplib::Response& response) {
    const HttpRequest converted = Convert(request);
    const std::string method = request.method == "HEAD" ? "GET" : request.method;
    HttpResponse answer;
    try {
      answer = MethodsOf(request.path)->at(method)(converted);
    } catch (const std::exception& error) {
      answer = hooks_.failed(error);
    }
    Send(converted, answer, response);
  }

  void Send(const HttpRequest& request, HttpResponse& answer, httplib::Response& response) {
    answer.headers.emplace_back("X-Request-Id", request.id);
    hooks_.finish(request, answer);
    Apply(answer, response);
  }

  static void Apply(const HttpResponse& from, httplib::Response& to) {
    to.status = from.status;
    for (const auto& [name, value] : from.headers) to.set_header(name, value);
    if (!from.stream) {
      to.set_content(from.body, from.content_type);
      return;
    }
    to.set_header("Cache-Control", "no-cache");
    to.set_header("X-Accel-Buffering", "no");
    to.set_chunked_content_provider(from.content_type,
                                    [stream = from.stream](size_t, httplib::DataSink& sink) {
                                      ChunkSink chunks(sink);
                                      stream(chunks);
                                      sink.done();
                                      return true;
                                    });
  }

  const HttpLimits limits_;
  const HttpHooks hooks_;
  std::map<std::string, Methods> routes_;
  std::atomic<bool> stopping_ = false;
};

HttpServer::HttpServer(const HttpLimits& limits, HttpHooks hooks)
    : impl_(std::make_unique<Impl>(limits, std::move(hooks))) {}
HttpServer::~HttpServer() { Stop(); }
void HttpServer::Route(const std::string& method, const std::string& path, Handler handler) {
  impl_->Add(method, path, std::move(handler));
}
int HttpServer::Listen(const std::string& host, int port) { return impl_->Bind(host, port); }
void HttpServer::Serve() { impl_->AcceptUntilStopped(); }
void HttpServer::Stop() { impl_->StopServing(); }

}  // namespace strata
