#pragma once

// Lines of a Cluster, for people and tests; they parse back. Files hold the JSON form (cluster/json.h).
//
//   kind V100 16GiB f32=15.7e12 f16=125e12 mem=900GB launch=5us sms=80 [speed=1]
//   group network 25Gb latency=10us
//   group host0 in network 150GB latency=2us [lanes=unlimited] [send=100us+400ps/B] [receive=…]
//   device gpu:0 V100 in host0 [memory=12GiB]

#include <string>
#include <string_view>

#include "espalier/cluster/cluster.h"

namespace espalier {

Cluster parse_cluster_lines(std::string_view text);  // throws InputError "line 3: …"
std::string print_cluster(const Cluster& cluster);

}  // namespace espalier
