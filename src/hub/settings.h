// Where the hub and its cache are, from the variables that other Hugging Face tools read. Plain
// values.
#pragma once

#include <string>

#include "base/result.h"

namespace lk {

struct HubSettings {
  std::string cache;     // folder of models--org--name; HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE,
                         // HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub
  std::string endpoint;  // HF_ENDPOINT, without a trailing slash
  std::string token;     // HF_TOKEN, or the token file (HF_TOKEN_PATH, HF_HOME/token); empty: none
  std::string ca_file;   // SSL_CERT_FILE or CURL_CA_BUNDLE; empty: the system's
  bool offline = false;  // HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE
  int connect_timeout_s = 10;  // HF_HUB_ETAG_TIMEOUT
  int read_timeout_s = 10;     // HF_HUB_DOWNLOAD_TIMEOUT: longest silence of a transfer

  // A request is tried this often in a row without getting 1 MiB further. The pause doubles from
  // backoff_s up to max_backoff_s; a Retry-After of up to max_retry_after_s is kept to.
  int attempts = 5;
  double backoff_s = 1, max_backoff_s = 8, max_retry_after_s = 120;
};

// Errors: kInvalid, naming the variable (an endpoint that is no http URL, a token with control
// characters).
Result<HubSettings> hub_settings_from_environment();

}  // namespace lk
