#pragma once

// When a wait for a message gives up: after a time that counts only while somebody could have sent it. It
// does not count while some worker says that it is busy (watchdog.h), nor while this process stood still
// itself (Ctrl-Z, a sleeping computer). A worker that died or stands still is the watchdog's business.
//
// Who waits looks at the clock once in a while and tells a Waited how much time has passed.

#include <atomic>
#include <memory>

#include "espalier/base/units.h"

namespace espalier {

struct Patience {
  Duration timeout;
  std::shared_ptr<const std::atomic<bool>> somebody_busy = {};  // may be null: nobody ever is

  // How long to wait before looking again: an eighth of the time-out, and half a second at most.
  Duration between_looks() const;
};

// One wait.
class Waited {
 public:
  // `passed` since the wait began or this was called last. A long time without a look counts as two looks.
  void add(const Patience& patience, Duration passed);
  bool too_long(const Patience& patience) const { return counted_ >= patience.timeout; }

 private:
  Duration counted_;
};

}  // namespace espalier
