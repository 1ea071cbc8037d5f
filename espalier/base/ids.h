#pragma once

// Indices that cannot be mixed up: NodeId and DeviceId are different types, though both are numbers.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace espalier {

template <class Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(std::size_t index) : value_(static_cast<std::uint32_t>(index)) {}

  constexpr std::size_t index() const { return value_; }
  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  std::uint32_t value_ = 0;
};

// An index as lists of indices hold it: in 32 bits.
constexpr std::uint32_t narrow(std::size_t index) {
  return static_cast<std::uint32_t>(index);
}

using OperatorId = Id<struct OperatorTag>;    // an operator of a Graph
using TensorId = Id<struct TensorTag>;        // a tensor of a Graph
using StorageId = Id<struct StorageTag>;      // the memory behind one or several tensors
using ParameterId = Id<struct ParameterTag>;  // a parameter or buffer of a Graph: one storage, several names
using GroupId = Id<struct GroupTag>;          // a group of a Cluster: a host, a rack, the whole network
using DeviceId = Id<struct DeviceTag>;        // a device of a Cluster
using KindId = Id<struct KindTag>;            // a device kind of a Cluster
using ClassId = Id<struct ClassTag>;          // an operator class of a CostTable
using StageId = Id<struct StageTag>;          // a stage of a PipelinePlan, or a fragment of a Placement
using TieId = Id<struct TieTag>;              // a tie of a StagedModel: a parameter that several stages read

}  // namespace espalier

template <class Tag>
struct std::hash<espalier::Id<Tag>> {
  std::size_t operator()(espalier::Id<Tag> id) const { return id.index(); }
};
