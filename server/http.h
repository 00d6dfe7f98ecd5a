// HTTP/1.1 over TCP, hardened: our own types in front of cpp-httplib, which http.cpp alone
// includes.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace strata {

// 16 hexadecimal digits that nothing else is called by.
std::string FreshId();

struct HttpRequest {
  std::string method;
  std::string path;
  std::string body;
  std::string remote;  // address of the peer
  std::string id;      // X-Request-Id of the client when it is a plain word, else a new one
  std::function<std::string(const char* name)> header;  // "" when absent
  std::function<std::string(const char* name)> query;   // a parameter of the query, "" when absent
  std::function<bool()> client_is_there;                // false once the peer has closed its side
};

// Where a streamed body goes. Both give false once the client is gone.
class BodySink {
 public:
  virtual ~BodySink() = default;
  virtual bool Write(const std::string& bytes) = 0;
  virtual bool ClientIsThere() = 0;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  // When set, the headers go out at once and this writes the body, chunk by chunk.
  std::function<void(BodySink&)> stream;
};

struct HttpLimits {
  size_t body_bytes = 32u << 20;
  size_t header_bytes = 64u << 10;  // request line and headers together
  int connections = 512;            // served at the same time, one thread each; more get a 503
  int keep_alive_seconds = 5;
  int read_seconds = 30;   // for all headers of a request, and for the next bytes of its body
  int write_seconds = 30;  // for a client to take the next bytes
};

// What the server asks of its owner; called on the connections' threads.
struct HttpHooks {
  // Sees every request before its body is read; a response refuses it.
  std::function<std::unique_ptr<HttpResponse>(const HttpRequest&)> admit;
  // Words a refusal of the server itself: no such path, too long, not HTTP.
  std::function<HttpResponse(int status, const std::string& message)> refuse;
  // Words what a handler threw.
  std::function<HttpResponse(const std::exception&)> failed;
  // Sees every response before it is sent; may add headers.
  std::function<void(const HttpRequest&, HttpResponse&)> finish;
};

// Exact paths, and what lies below a path. Refused before a body is read: unknown paths (404),
// methods (405), bodies without a length (411) or too long (413), encoded or multipart ones (415),
// headers over their budget (431).
class HttpServer {
 public:
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  HttpServer(const HttpLimits& limits, HttpHooks hooks);
  ~HttpServer();  // as Stop

  // A `path` that ends in "/*" takes all that go on behind its '/', but for those with a route of
  // their own.
  void Route(const std::string& method, const std::string& path, Handler handler);
  // Binds and listens; port 0 takes a free one. The port bound. Fail(kUsage) when it is in use,
  // with the way out.
  int Listen(const std::string& host, int port);
  // Accepts until Stop, which may come first; returns when every connection has ended.
  // Fail(kInternal) when the listening socket is lost.
  void Serve();
  // Connections end after the response in flight.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
