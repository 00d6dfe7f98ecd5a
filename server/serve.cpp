#include "server/serve.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>

#include "server/api_error.h"

namespace strata {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Tells systemd (Type=notify) about a change; nothing without it.
void NotifySupervisor(const std::string& state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (std::strlen(path) >= sizeof address.sun_path) return;
  std::strcpy(address.sun_path, path);
  const size_t length = offsetof(sockaddr_un, sun_path) + std::strlen(path);
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  sendto(fd, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&address),
         static_cast<socklen_t>(length));
  close(fd);
}

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

HttpHooks MakeHooks(Service& service) {
  HttpHooks hooks;
  hooks.admit = [&service](const HttpRequest& request) { return CheckAccess(service, request); };
  hooks.refuse = [](int status, const std::string& message) {
    return ErrorResponse(ApiError(status, message));
  };
  hooks.failed = [&service](const std::exception& error) { return service.Refusal(error); };
  hooks.finish = [&service](const HttpRequest& request, HttpResponse& response) {
    AddCorsHeaders(service, request, response);
    service.metrics().HttpAnswered(response.status);
    spdlog::debug("{} {} {} from {}: {}", request.id, request.method, request.path, request.remote,
                  response.status);
  };
  return hooks;
}

// Whether one of EndSignals came within the time.
bool AwaitSignal(milliseconds time) {
  const sigset_t signals = EndSignals();
  const timespec slice{time.count() / 1000, time.count() % 1000 * 1'000'000};
  return sigtimedwait(&signals, nullptr, &slice) > 0;
}

// Loads on another thread, so that a signal can end the wait.
std::unique_ptr<ServedModel> LoadOrEnd(Service& service, const ModelLoader& load) {
  auto loading = std::async(std::launch::async, [&] {
    return load([&service](double share) { service.SetLoading(share); });
  });
  while (loading.wait_for(milliseconds(0)) != std::future_status::ready) {
    if (!AwaitSignal(milliseconds(20))) continue;
    spdlog::warn("ended while the model was loading");
    std::_Exit(0);
  }
  return loading.get();
}

// Waits until nothing runs, the time is over, or a second signal comes.
void Drain(Service& service, const ServedModel& model, int seconds) {
  service.SetDraining();
  model.engine->Stop();
  NotifySupervisor("STOPPING=1");
  spdlog::info("draining: {} requests are open, at most {} s", model.engine->open_requests(),
               seconds);
  const auto end = steady_clock::now() + std::chrono::seconds(seconds);
  while (model.engine->open_requests() > 0 && steady_clock::now() < end) {
    if (!AwaitSignal(milliseconds(50))) continue;
    spdlog::warn("second signal: ending now");
    std::_Exit(1);
  }
  // What is still open ends with an error that says so.
  model.engine->CancelAll();
}

}  // namespace

int Serve(const ServeOptions& options, const ModelLoader& load) {
  Service service(options.service);
  HttpServer http(options.limits, MakeHooks(service));
  AddInfoRoutes(http, service);
  AddOpenAiRoutes(http, service);
  AddAnthropicRoutes(http, service);
  AddSlotRoutes(http, service);
  const int port = http.Listen(options.host, options.port);
  std::future<void> serving = std::async(std::launch::async, [&] { http.Serve(); });

  std::unique_ptr<ServedModel> model;
  std::exception_ptr failure;
  try {
    model = LoadOrEnd(service, load);
    service.SetReady(model.get());
    const std::string address = fmt::format("http://{}:{}", options.host, port);
    spdlog::info("{} is ready at {} (context {}, {} at the same time)", model->names.front(),
                 address, model->engine->engine().context(),
                 model->engine->engine().runner().options().max_sequences);
    spdlog::info(
        "try: curl {}/v1/chat/completions -H 'Content-Type: application/json' -d "
        "'{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'",
        address);
    NotifySupervisor("READY=1");
    while (serving.wait_for(milliseconds(0)) != std::future_status::ready &&
           !AwaitSignal(milliseconds(1000))) {
    }
    Drain(service, *model, options.drain_seconds);
  } catch (...) {
    failure = std::current_exception();
  }
  http.Stop();
  serving.wait();
  if (failure) std::rethrow_exception(failure);
  serving.get();
  const EngineStats stats = model->engine->Status().stats;
  spdlog::info("served {} prompt tokens ({} from the cache) and {} answer tokens in {} steps",
               stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens, stats.steps);
  return 0;
}

}  // namespace strata
