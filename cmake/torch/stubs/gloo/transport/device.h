#pragma once

// Stand-in for a Gloo header: see gloo/context.h.

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
