#include "espalier/app/machine.h"

#include "espalier/base/host.h"

namespace espalier {

Machine this_machine() {
  const Host host = this_host();
  Machine machine;
  machine.local.devices = host.usable;
  machine.local.memory_each = Bytes(host.memory.count() / 10 * 9 / host.usable);
  machine.description = host.text();
  return machine;
}

}  // namespace espalier
