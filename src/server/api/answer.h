// What an endpoint makes of one HTTP request: the engine requests to run, and how their token
// events become a JSON body or server-sent events. No sockets, no threads: used by one thread,
// tested alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/request.h"
#include "server/api/api_error.h"
#include "server/api/served_model.h"

namespace lk {

class Answer {
 public:
  virtual ~Answer() = default;

  // The requests to run, in the order of `index` below; called once. Usually one; more for n > 1
  // and for lists of prompts.
  virtual std::vector<Request> take_requests() = 0;
  virtual bool streams() const = 0;

  // One event of request `index`. Appends ready SSE text to `out` if it streams.
  virtual void on_event(int index, TokenEvent&& event, std::string& out) = 0;
  // All requests have finished.
  virtual bool complete() const = 0;
  // The end of the stream ("data: [DONE]\n\n" and what the endpoint writes before it).
  virtual void end(std::string& out) = 0;
  // The whole body where it does not stream. Errors: what became of a request that failed.
  virtual ApiResult<std::string> body() = 0;
  // Something went wrong after the stream began: an error event, then the end.
  virtual void fail(const ApiError& error, std::string& out) = 0;
};

// `body` is the parsed JSON of the request; `who` is the adapter that its "model" stands for (null:
// the base), named `model`. Errors: 400 naming the field.
using MakeAnswer = ApiResult<std::unique_ptr<Answer>> (*)(const OrderedJson& body,
                                                          const ServedModel& served,
                                                          const std::string& model,
                                                          std::shared_ptr<const EngineAdapter> who);

}  // namespace lk
