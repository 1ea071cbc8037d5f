#pragma once

// Lines of a Cluster, for people and tests; they parse back. Files hold the JSON form (cluster/json.h).
//
//   kind V100 16GiB f32=15.7e12 [tf32=…] [bf16=…] f16=125e12 mem=900GB launch=5us sms=80 [speed=1]
//   kind mine [32GiB] preset=V100-16GB [speed=0.5] [price=2.5]     a preset, but for what stands here
//   group network 25Gb latency=10us
//   group host0 in network 150GB latency=2us [lanes=unlimited] [send=100us+400ps/B] [receive=…]
//   device gpu:0 V100 in host0 [memory=12GiB] [price=1]
//   link gpu:0 gpu:1 50GB [latency=2us] [lanes=unlimited] [send=…] [receive=…]
//
// A price is that of an hour, in any currency; a device that has none of its own costs what its kind does.
//
// A link is the same in both directions unless a line from its second end to its first says otherwise. What
// it leaves out is that of the lowest group with both ends.
//
// `kind A100-80GB` alone, or a device of a kind that no line defines, means the preset of that name.

#include <string>
#include <string_view>

#include "espalier/cluster/cluster.h"

namespace espalier {

Cluster parse_cluster_lines(std::string_view text);  // throws InputError "line 3: …"
std::string print_cluster(const Cluster& cluster);

}  // namespace espalier
