// The HTTP server alone: how it ends.
#include "server/http.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <future>

#include "kernels/status.h"

namespace strata {
namespace {

HttpHooks Hooks() {
  HttpHooks hooks;
  hooks.admit = [](const HttpRequest&) { return nullptr; };
  hooks.refuse = [](int, const std::string&) { return HttpResponse(); };
  hooks.failed = [](const std::exception&) { return HttpResponse(); };
  hooks.finish = [](const HttpRequest&, HttpResponse&) {};
  return hooks;
}

TEST(Http, AStopBeforeServeIsKept) {
  HttpServer server({}, Hooks());
  server.Listen("127.0.0.1", 0);
  server.Stop();
  auto serving = std::async(std::launch::async, [&] { server.Serve(); });
  EXPECT_EQ(serving.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  server.Stop();
}

TEST(Http, AListeningSocketThatIsLostIsAFailure) {
  HttpServer server({}, Hooks());
  server.Listen("127.0.0.1", 0);
  auto serving = std::async(std::launch::async, [&] { server.Serve(); });
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0)
      shutdown(fd, SHUT_RDWR);
  }
  EXPECT_THROW(serving.get(), Error);
}

}  // namespace
}  // namespace strata
