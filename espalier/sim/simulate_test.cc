#include "espalier/sim/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "testing/random_staged_model.h"
#include "testing/reference_simulator.h"
#include "testing/small_cases.h"

namespace espalier {
namespace {

using espalier::testing::Features;
using espalier::testing::kOneIn;
using espalier::testing::random_staged_model;
using espalier::testing::RandomModel;
using espalier::testing::RandomModelOptions;
using espalier::testing::reference_simulate;
using espalier::testing::small_case;
using espalier::testing::SmallCase;

// Spans of equal (device, stream, start, end) may stand in any order: sort them fully.
Trace canonical(Trace trace) {
  std::sort(trace.spans.begin(), trace.spans.end(), [](const Span& a, const Span& b) {
    const auto key = [](const Span& s) {
      return std::tuple(s.device, s.stream, s.start, s.end, s.kind, s.action, s.message, s.peer);
    };
    return key(a) < key(b);
  });
  return trace;
}

// The first difference between two traces, in words; empty if they are equal.
std::string difference(const Trace& a, const Trace& b) {
  if (a == b) return "";
  const auto describe = [](const Span& s) {
    return "device " + std::to_string(s.device.index()) + " kind " +
           std::to_string(static_cast<int>(s.kind)) + " " + letter(s.action.kind) +
           std::to_string(s.action.target()) + "." + std::to_string(s.action.micro_batch) + " " +
           std::to_string(s.start.count()) + "-" + std::to_string(s.end.count()) + " posted " +
           (s.posted ? std::to_string(s.posted->count()) : "-");
  };
  for (std::size_t i = 0; i < std::min(a.spans.size(), b.spans.size()); ++i) {
    if (a.spans[i] != b.spans[i]) return "span " + describe(a.spans[i]) + " against " + describe(b.spans[i]);
  }
  for (std::size_t i = 0; i < std::min(a.memory.size(), b.memory.size()); ++i) {
    if (a.memory[i] != b.memory[i]) {
      std::string text = "memory of device " + std::to_string(a.memory[i].device.index()) + " at " +
                         std::to_string(a.memory[i].time.count()) + " and " +
                         std::to_string(b.memory[i].time.count());
      for (std::size_t c = 0; c < kMemoryCategories; ++c) {
        text += " " + std::to_string(a.memory[i].held.bytes[c].count()) + "/" +
                std::to_string(b.memory[i].held.bytes[c].count());
      }
      return text;
    }
  }
  return "numbers of spans, samples, or something else";
}

// Simulates, compares with the reference, checks by check_trace's rules. False if the schedule is refused.
bool agrees(const StagedModel& model, const Cluster& cluster, const Schedule& schedule) {
  if (!check_schedule(model, schedule).empty()) return false;
  const Trace trace = simulate(model, cluster, schedule);
  EXPECT_EQ(difference(canonical(trace), canonical(reference_simulate(model, cluster, schedule))), "");
  EXPECT_EQ(check_trace(model, cluster, schedule, trace), std::vector<std::string>());
  return true;
}

// All DAGs of this many stages, with all combinations of features.
void try_all(std::size_t stages, unsigned every, std::size_t* agreed, std::size_t* refused) {
  const unsigned pairs = static_cast<unsigned>(stages * (stages - 1) / 2);
  for (unsigned edges = 0; edges < 1u << pairs; ++edges) {
    for (unsigned bits = edges % every; bits < Features::kAll; bits += every) {
      const SmallCase small = small_case(stages, edges, Features(bits), (std::uint64_t{edges} << 8) + bits);
      SCOPED_TRACE("stages " + std::to_string(stages) + " edges " + std::to_string(edges) + " features " +
                   std::to_string(bits));
      ++*(agrees(small.model, small.cluster, small.schedule) ? agreed : refused);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(Simulate, EqualsTheReferenceOnAllDagsOfUpToThreeStages) {
  std::size_t agreed = 0, refused = 0;
  for (std::size_t stages = 1; stages <= 3; ++stages)
    try_all(stages, stages == 3 ? kOneIn : 1, &agreed, &refused);
  EXPECT_EQ(agreed + refused, (1u + 2 + 8 / kOneIn) * Features::kAll);
  EXPECT_LE(refused, 2u);  // unequal sizes whose limits are too small for the larger
}

TEST(Simulate, EqualsTheReferenceOnAllDagsOfFourStages) {
  // Of the 256 combinations of features every fifth, another fifth for the next DAG.
  std::size_t agreed = 0, refused = 0;
  try_all(4, 5 * kOneIn, &agreed, &refused);
  EXPECT_GE(agreed + refused, 64u * (Features::kAll / (5 * kOneIn)));
  EXPECT_LE(refused, 2u);
}

TEST(Simulate, EqualsTheReferenceOnRandomModels) {
  std::size_t agreed = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    RandomModelOptions options;
    options.unequal_sizes = seed % 3 == 1;
    options.random_limits = seed % 3 == 2;
    const RandomModel random = random_staged_model(rng, options);
    const Schedule schedule = make_schedule(random.model, random.cluster.devices().size());
    SCOPED_TRACE("seed " + std::to_string(seed));
    ++(agrees(random.model, random.cluster, schedule) ? agreed : refused);
    if (HasFailure()) return;
  }
  EXPECT_LE(refused, agreed / 10);
}

}  // namespace
}  // namespace espalier
