#pragma once

// The devices and what connects them.
//
// A tree of groups: the network at the root, hosts (or racks, sockets, …) below it, devices as leaves. Every
// member of a group has a directed link up into the group and one down from it, with the group's bandwidth.
// A route from device a to device b goes up from a to the lowest common group and down to b; it holds all
// those links at once, at the bandwidth of the slowest, then pays the latency of the common group, holding
// nothing (docs/semantics.md, links). Routes are computed, never stored as a matrix.
//
// A cluster may name links beside the tree, between two devices or groups: NVLink between pairs, a slow cable
// between two hosts. A route from inside one end to inside the other goes up to the first end, over the link
// and down from the second, and pays the link's latency. Of several named links the one counts whose ends lie
// deepest in the tree (their depths added), of equals the first.
//
//   host0 ─ gpu:0, gpu:1 ─┐  link gpu:0 gpu:1: their messages leave the links of host0 free
//   host1 ─ gpu:2, gpu:3 ─┘  link host0 host1: gpu:0 → gpu:2 holds gpu:0 up, host0 to host1, gpu:2 down

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "espalier/base/ids.h"
#include "espalier/base/units.h"

namespace espalier {

// Rates and speeds beyond it are wrong data.
inline constexpr double kMaxRate = 1e30;
inline constexpr int kMaxMultiprocessors = 1'000'000;

// What a device is. Rates are peaks; the cost model turns them into times.
struct DeviceKind {
  std::string name = {};                  // "A100-80GB"; the key of a cost file
  Bytes memory = {};                      // usable by a training step
  double flops_f32 = 0;                   // floating-point operations per second
  double flops_f16 = 0;                   // the same for half precision, matrix units included
  std::optional<double> flops_tf32 = {};  // of matrix work on f32 numbers where TF32 is allowed; none: as f32
  std::optional<double> flops_bf16 = {};  // as f16 for bf16; none: as f16
  std::int64_t memory_bandwidth = 0;      // bytes per second
  Duration launch_overhead = {};          // least time of one operator
  int multiprocessors = 1;                // tiles run side by side; for a CPU its threads
  double speed = 1;                       // all times of this kind are divided by it ("half as fast" = 0.5)
  std::optional<double> price_per_hour = {};  // of one device, in any currency; none: not known
  friend bool operator==(const DeviceKind&, const DeviceKind&) = default;
};

struct Device {
  std::string name = {};  // "gpu:0"
  KindId kind = {};
  GroupId group = {};                         // the group it is a leaf of
  Bytes memory = {};                          // this device's own limit; the kind's by default
  std::optional<double> price_per_hour = {};  // this device's own; the kind's by default
  friend bool operator==(const Device&, const Device&) = default;
};

// Compute time that a message takes from the device that sends or receives it: fixed + per byte.
struct EndpointCost {
  Duration fixed = {};
  std::int64_t picoseconds_per_byte = 0;
  Duration of(Bytes bytes) const;  // rounded up to whole nanoseconds; 0 stays 0
  friend bool operator==(const EndpointCost&, const EndpointCost&) = default;
};

struct Group {
  std::string name = {};                       // "host0", "network"
  std::optional<GroupId> parent = {};          // none for the root, which is group 0
  std::optional<std::int64_t> bandwidth = {};  // bytes per second of each member's links; none: unlimited
  Duration latency = {};                       // of a route whose highest group is this one
  bool contention = true;  // false (`lanes: unlimited`): any number of transfers share a link undisturbed
  EndpointCost send = {};  // for routes whose highest group is this one
  EndpointCost receive = {};
  friend bool operator==(const Group&, const Group&) = default;
};

// A device, or a group with all inside it.
using Member = std::variant<DeviceId, GroupId>;

// A named link. It is the same in both directions, unless another one from `to` to `from` says otherwise:
// then each is for its own direction.
struct NamedLink {
  Member from = {};
  Member to = {};
  std::int64_t bandwidth = 0;  // bytes per second
  Duration latency = {};
  bool contention = true;  // false: any number of transfers share it undisturbed
  EndpointCost send = {};
  EndpointCost receive = {};
  friend bool operator==(const NamedLink&, const NamedLink&) = default;
};

// A directed link: of a member up into its group, or down from it, or a named one in one direction.
// Numbered densely: see Cluster::link_count.
using LinkIndex = std::uint32_t;

struct Route {
  std::vector<LinkIndex> links = {};           // those with contention only; all are held at once
  std::optional<std::int64_t> bandwidth = {};  // of the slowest link; none: unlimited
  Duration latency = {};
  EndpointCost send = {};
  EndpointCost receive = {};

  Duration hold(Bytes bytes) const { return bandwidth ? transfer_time(bytes, *bandwidth) : Duration(); }
  friend bool operator==(const Route&, const Route&) = default;
};

struct ClusterParts {
  std::vector<DeviceKind> kinds = {};
  std::vector<Group> groups = {};  // group 0 is the root; a parent's id is smaller
  std::vector<Device> devices = {};
  std::vector<NamedLink> links = {};
  friend bool operator==(const ClusterParts&, const ClusterParts&) = default;
};

class Cluster {
 public:
  // Throws InputError with the first violation that check_cluster finds.
  explicit Cluster(ClusterParts parts);

  std::span<const DeviceKind> kinds() const { return parts_.kinds; }
  std::span<const Group> groups() const { return parts_.groups; }
  std::span<const Device> devices() const { return parts_.devices; }
  const DeviceKind& kind(KindId id) const { return parts_.kinds[id.index()]; }
  const Group& group(GroupId id) const { return parts_.groups[id.index()]; }
  const Device& device(DeviceId id) const { return parts_.devices[id.index()]; }
  const DeviceKind& kind_of(DeviceId id) const { return kind(device(id).kind); }
  std::span<const NamedLink> links() const { return parts_.links; }
  const ClusterParts& parts() const { return parts_; }
  const std::string& name_of(Member member) const;

  std::optional<DeviceId> find_device(std::string_view name) const;

  // Whether every device has a price; if not, none has.
  bool has_prices() const { return parts_.devices.front().price_per_hour.has_value(); }

  // The lowest group that holds both. O(depth).
  GroupId common_group(DeviceId a, DeviceId b) const;

  // Whether a named link ends at this very device: it differs from others of its kind and group.
  bool has_own_link(DeviceId device) const;

  // From one device to another; a device to itself: no links, no time. O(depth); with named links O(depth² ·
  // log links).
  Route route(DeviceId from, DeviceId to) const;

  // Up and down links of every device and every group but the root, then both directions of the named links:
  // 2 · (devices + groups - 1 + links).
  std::size_t link_count() const {
    return 2 * (parts_.devices.size() + parts_.groups.size() - 1 + parts_.links.size());
  }
  std::string link_name(LinkIndex link) const;  // "gpu:0 up", "host1 down", "gpu:0 to gpu:1"

  friend bool operator==(const Cluster&, const Cluster&) = default;

 private:
  // A named link in one direction, for routes.
  struct Way {
    Member from, to;
    LinkIndex link = 0;
    friend bool operator==(const Way&, const Way&) = default;
  };
  const Way* way(DeviceId from, DeviceId to, GroupId top) const;

  ClusterParts parts_;
  std::vector<std::uint32_t> depth_;  // of each group
  std::vector<Way> ways_;             // by ends
};

// Every broken invariant, one line each: unique names (of kinds; of groups and devices together, since both
// name links), positive rates and memory up to the limits above, no negative times, a tree in which group 0
// is the only root and parents come first, at least one device; named links between members that are there,
// neither of which is in the other, at most one from each to each; prices from 0 to kMaxRate, for every
// device or for none.
std::vector<std::string> check_cluster(const ClusterParts& parts);

// What a named link is where a file says nothing of it: latency and endpoint costs of the lowest group with
// both ends; no bandwidth yet. The ends must exist.
NamedLink usual_link(const ClusterParts& parts, Member from, Member to);

// A ring all-reduce of `bytes` among `members` (≥ 1): 2·(n-1) steps of bytes/n over the slowest route of the
// ring in member order, latency and both endpoints paid at each step. `links` are those it holds. (Patarasuk,
// Yuan, JPDC'09)
struct CollectiveCost {
  Duration hold;                 // all links are held this long
  Duration latency;              // with the endpoints; paid after it, holding nothing
  std::vector<LinkIndex> links;  // ascending
};
CollectiveCost all_reduce_cost(const Cluster& cluster, std::span<const DeviceId> members, Bytes bytes);

// Presets by name: V100-16GB, V100-32GB, A100-40GB, A100-80GB, H100, H200 (all as sold on SXM boards), B200,
// MI300X, P100-16GB, T4, L4, L40S, A10, A30, A40, A4000, A5000, A6000, GTX1080Ti, RTX2080Ti, RTX3060 (12 GB),
// RTX3070, RTX3080 (10 GB), RTX3090, RTX4070, RTX4080, RTX4090, RTX5080, RTX5090 and cpu (one core). Rates
// are the makers' published dense peaks; memory is what a step may use: what the driver reports less half a
// GiB that a framework takes.
std::span<const DeviceKind> device_presets();

// The preset of that name. Throws InputError naming the nearest one.
const DeviceKind& device_preset(std::string_view name);

// The kind of a device that its driver calls so: "Tesla V100-SXM2-16GB" is V100-16GB, "NVIDIA GeForce RTX
// 4090" RTX4090. What no preset is called ("RTX 3080 Ti") stays its own words, joined by dashes.
std::string kind_called(std::string_view product);

// The link of each device into a host of its kind, one direction:
//   V100 150GB/s (NVLink 2), A100 300GB/s (NVLink 3), H100 and H200 450GB/s (NVLink 4), B200 900GB/s (NVLink
//   5), MI300X 64GB/s (Infinity Fabric, to each other one), latency 5 µs;
//   RTX50.. 64GB/s (PCIe 5 x16), L4, L40S, A10 to A6000, RTX30.. and RTX40.. 32GB/s (PCIe 4 x16), P100, T4,
//   GTX1080Ti and RTX2080Ti 16GB/s (PCIe 3 x16), latency 10 µs;
//   cpu and other kinds 2GB/s, latency 40 µs (processes of one machine over loopback).
Group usual_host(const DeviceKind& kind, std::string name);

// "4xA100-80GB+2xV100-16GB@25Gb": each `NxKind` is a host with its kind's usual inner link, the hosts are
// joined at the rate behind '@' (10 µs latency; 100Gb if absent). `HxNxKind` stands for H equal hosts, `Kind`
// for `1xKind`. "2xRTX4090,RTX3090" is one host of unequal devices, with the link of the slowest. A single
// host without '@' has no network above it. Devices are `gpu:0` … (`cpu:0` … for cpu), counted over the
// hosts; at most 4096. "local:N" is not known here: it describes a machine, and the library does not look at
// one; see local_cluster. Throws InputError naming the part that is wrong, and the nearest preset.
Cluster parse_cluster(std::string_view short_form);

// What a short form leaves unsaid of its links, for people: "300GB/s and 5us inside a host of A100-80GB, 10us
// between hosts". Throws as parse_cluster does.
std::string assumed_links(std::string_view short_form);

// N workers on one host, one device per core, as `cpu:0` … : what `local` means once somebody has counted.
// What is 0 is as in the preset cpu. Throws InputError unless 1 <= devices <= 4096.
struct LocalMachine {
  std::string kind = "cpu";
  int devices = 1;
  Bytes memory_each = {};
  double flops_f32_each = 0;
  std::int64_t memory_bandwidth_each = 0;
};
Cluster local_cluster(const LocalMachine& machine);

}  // namespace espalier
