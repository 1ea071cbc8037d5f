#pragma once

// A policy: from what it sees of a graph and its devices to the probability of each device for each node.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/base/safetensors.h"
#include "espalier/learned/policy_input.h"
#include "espalier/learned/policy_shape.h"

namespace espalier::placement {

class Policy {
 public:
  // Fresh weights. `device`: where the net computes, "cpu", "cuda" or "cuda:1"; throws InputError where there
  // is no such device.
  Policy(const PolicyShape& shape, std::uint64_t seed, const std::string& device = "cpu");

  // A table of logits for each input instead of a net: what a net is measured against. It knows inputs by
  // their address and nothing of graphs that it has not seen.
  static Policy table();

  // A file that write() made. Throws InputError naming what is wrong.
  static Policy read(const std::string& path, const std::string& device = "cpu");
  // The same of bytes; `name` is what errors call them.
  static Policy parse(std::string_view bytes, const std::string& name, const std::string& device = "cpu");
  // safetensors; the metadata has the shape and what `remarks` say. Atomic. Not of a table.
  void write(const std::string& path, const SafetensorsMetadata& remarks = {}) const;

  Policy(Policy&&) noexcept;
  Policy& operator=(Policy&&) noexcept;
  ~Policy();

  bool is_table() const;
  const PolicyShape& shape() const;   // of a net
  const std::string& device() const;  // as it was given
  std::size_t weights() const;        // numbers that it has learnt

  // nodes × devices; rows add up to 1. One forward pass. Of a policy that coarsens: each node's row is that
  // of its group where each node makes its most probable choice, so the most probable placement is of groups.
  std::vector<float> probabilities(const PolicyInput& input) const;

  // Another one with the same weights that learns apart.
  Policy clone() const;
  // The same, with the heads of `shape` for levels and groups too: fresh from the seed where this one has
  // none.
  Policy with_heads(const PolicyShape& shape, std::uint64_t seed) const;

  struct Parts;  // internal to learned/
  Parts& parts() const { return *parts_; }

 private:
  Policy();
  std::unique_ptr<Parts> parts_;
};

}  // namespace espalier::placement
