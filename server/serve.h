// The serving loop: binds, loads, serves, drains.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http.h"
#include "server/service.h"

namespace strata {

struct ServeOptions {
  ServiceOptions service;
  HttpLimits limits;
  std::string host = "127.0.0.1";
  int port = 8080;
  int drain_seconds = 30;
};

// Loads the model on a thread of its own, telling its progress as a share from 0 to 1.
using ModelLoader = std::function<std::unique_ptr<ServedModel>(std::function<void(double)>)>;

// Listens before it loads, so that /health can say how far it is. SIGTERM and SIGINT drain: what
// runs goes on for at most drain_seconds, nothing new is taken; a second signal ends the program at
// once, as does one while the model loads. All threads of the program must block both signals.
// Throws what the load or HttpServer::Serve threw; 0 otherwise. `host` is a numeric address or a
// name.
int Serve(const ServeOptions& options, const ModelLoader& load);

}  // namespace strata
