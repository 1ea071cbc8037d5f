#pragma once

// A cluster as equal parts side by side: what one of them does, all can do at once.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "espalier/cluster/cluster.h"

namespace espalier {

// What is divided: the outermost group that has equal members, so that parts share no link, or the innermost
// groups, so that each part has devices of every host, and equal devices of two parts are near each other. A
// group that is whole while its members are divided is shared: `part` has its share of that bandwidth.
//
//                     outermost                              innermost
//   2x4xV100          two parts of a host                    two parts of half of each host
//   4xA100+4xV100     two parts of half of each host: there is no other way
enum class Division : std::uint8_t { kOutermost, kInnermost };

struct EqualParts {
  Cluster part;
  std::vector<std::vector<DeviceId>> copies;  // by copy, by device of `part`: the cluster's device
};

// As few parts as there are, two at least, of at least `least` devices each. Nothing where the cluster has no
// such parts, or names links. O(devices · log devices · depth).
std::optional<EqualParts> equal_parts(const Cluster& cluster, Division division, std::size_t least);

}  // namespace espalier
