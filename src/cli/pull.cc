#include "cli/pull.h"

#include "cli/hub_models.h"
#include "cli/output.h"

namespace lk {

int pull_command(const PullOptions& options) {
  Output output;
  const auto folder = pull_from_hub(options);
  if (!folder) {
    print_error(folder.error().message);
    return interrupted() ? kExitInterrupted : kExitUsage;
  }
  output.write(*folder + "\n");
  return output.closed() ? kExitFailed : kExitGood;
}

}  // namespace lk
