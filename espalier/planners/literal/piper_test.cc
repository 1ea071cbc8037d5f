// Figures are what the authors' program prints (github.com/msr-fiddle/piper, commit d7fc8cf), measured with
// it: bandwidth 25·2^30 bytes/s.

#include "espalier/planners/literal/piper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <ostream>

#include "espalier/base/rng.h"
#include "espalier/planners/literal/published_for_tests.h"
#include "testing/refusal.h"

namespace espalier::literal {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kGiB = 1073741824.0;

PiperOptions as_measured(std::int64_t devices, double gibibytes, std::int64_t micro_batches) {
  return {
      .devices = devices, .micro_batches = micro_batches, .memory = gibibytes * kGiB, .bandwidth = 25 * kGiB};
}

// "none" where no plan fits.
void expect_time(const PiperProfile& profile, const PiperOptions& options, const std::string& time) {
  const PiperResult result = piper(profile, options);
  EXPECT_THAT(check_piper(profile, options, result), IsEmpty());
  EXPECT_EQ(result.found(), time != "none");
  if (result.found() && time != "none") {
    EXPECT_PRED2(rounds_to_six_digits, result.time_per_sample, time);
  }
}

struct Bert32Row {
  std::int64_t devices;
  const char* at[4];  // with 1, 2, 8 and 80 GiB
  friend std::ostream& operator<<(std::ostream& out, const Bert32Row& row) {
    return out << "k" << row.devices;
  }
};

class PiperBert32 : public ::testing::TestWithParam<Bert32Row> {};

TEST_P(PiperBert32, IsTheAuthors) {
  const PiperProfile profile = piper_input("bert32a100");
  const double memory[] = {1, 2, 8, 80};
  for (std::size_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(memory[i]);
    expect_time(profile, as_measured(GetParam().devices, memory[i], 1920), GetParam().at[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Measured, PiperBert32,
    ::testing::Values(Bert32Row{8, {"none", "none", "0.165856", "0.122007"}},
                      Bert32Row{32, {"none", "0.0665495", "0.0415155", "0.030844"}},
                      Bert32Row{64, {"none", "0.0320301", "0.0202006", "0.0156502"}},
                      Bert32Row{128, {"0.0388717", "0.0151464", "0.0101209", "0.00805324"}},
                      Bert32Row{512, {"0.00878004", "0.00366753", "0.00256113", "0.00227252"}},
                      Bert32Row{1024, {"0.00439174", "0.00184063", "0.00130318", "0.00115876"}},
                      Bert32Row{2048, {"0.0021975", "0.000927184", "0.000703591", "0.000663713"}}));

TEST(PiperBert32Batch, OfFewerMicroBatches) {
  expect_time(piper_input("bert32a100"), as_measured(512, 8, 480), "0.0028123");
}

TEST(PiperBert32Sets, AreCounted) {
  EXPECT_EQ(piper(piper_input("bert32a100"), as_measured(8, 80, 1920)).downsets, 43U);
}

struct GnmtRow {
  std::int64_t devices;
  double gibibytes;
  const char* time;
  friend std::ostream& operator<<(std::ostream& out, const GnmtRow& row) {
    return out << "k" << row.devices << " " << row.gibibytes << " GiB";
  }
};

class PiperGnmt : public ::testing::TestWithParam<GnmtRow> {};

// Times are milliseconds beside a bandwidth per second, as published: communication is nearly free.
TEST_P(PiperGnmt, IsTheAuthors) {
  const PiperProfile profile = piper_input("gnmt");
  expect_time(profile, as_measured(GetParam().devices, GetParam().gibibytes, 256), GetParam().time);
}

INSTANTIATE_TEST_SUITE_P(Measured, PiperGnmt,
                         ::testing::Values(GnmtRow{2, 2.5, "263.354"}, GnmtRow{2, 3.5, "260.227"},
                                           GnmtRow{4, 1.2, "137.131"}, GnmtRow{4, 2.5, "131.677"},
                                           GnmtRow{8, 0.6, "none"}, GnmtRow{8, 1.2, "68.5656"},
                                           GnmtRow{8, 2.4, "65.8389"}));

// The authors' baselines: the time without one freedom, and of equal stages, over Piper's.
struct PiperBaselineRow {
  std::int64_t devices;
  double gibibytes;
  const char* no_data_parallel;
  const char* no_tensor_parallel;
  const char* no_recompute;
  const char* equal;
  const char* equal_without_tensor_parallel;
  friend std::ostream& operator<<(std::ostream& out, const PiperBaselineRow& row) {
    return out << "k" << row.devices << " " << row.gibibytes << " GiB";
  }
};

class PiperBaseline : public ::testing::TestWithParam<PiperBaselineRow> {};

TEST_P(PiperBaseline, IsTheAuthors) {
  const PiperBaselineRow& row = GetParam();
  const PiperProfile profile = piper_input("bert32a100");
  const PiperOptions all = as_measured(row.devices, row.gibibytes, 1920);
  const double best = piper(profile, all).time_per_sample;
  PiperOptions no_data = all, no_tensor = all, no_recompute = all;
  no_data.data_parallel = no_tensor.tensor_parallel = no_recompute.recompute = false;
  const auto expect_ratio = [&](const PiperOptions& options, const PiperResult& result,
                                const std::string& ratio) {
    EXPECT_THAT(check_piper(profile, options, result), IsEmpty());
    EXPECT_EQ(result.found(), ratio != "none");
    if (result.found() && ratio != "none") {
      EXPECT_PRED2(rounds_to, result.time_per_sample / best, ratio);
    }
  };
  expect_ratio(no_data, piper(profile, no_data), row.no_data_parallel);
  expect_ratio(no_tensor, piper(profile, no_tensor), row.no_tensor_parallel);
  expect_ratio(no_recompute, piper(profile, no_recompute), row.no_recompute);
  expect_ratio(all, piper_equal_split(profile, all), row.equal);
  expect_ratio(no_tensor, piper_equal_split(profile, no_tensor), row.equal_without_tensor_parallel);
}

INSTANTIATE_TEST_SUITE_P(
    Measured, PiperBaseline,
    ::testing::Values(PiperBaselineRow{128, 1, "1.90", "none", "none", "none", "none"},
                      PiperBaselineRow{512, 1, "8.42", "none", "none", "none", "none"},
                      PiperBaselineRow{1024, 1, "16.83", "none", "none", "none", "none"},
                      PiperBaselineRow{2048, 1, "33.63", "none", "21.94", "none", "none"},
                      PiperBaselineRow{8, 8, "1.00", "1.00", "1.57", "1.39", "1.39"},
                      PiperBaselineRow{8, 80, "1.35", "1.00", "1.00", "1.00", "1.00"},
                      PiperBaselineRow{32, 2, "1.11", "none", "none", "none", "none"},
                      PiperBaselineRow{32, 8, "1.78", "1.00", "1.36", "1.24", "1.24"},
                      PiperBaselineRow{32, 80, "2.40", "1.00", "1.00", "1.00", "1.00"},
                      PiperBaselineRow{64, 2, "2.31", "1.38", "4.89", "3.85", "none"},
                      PiperBaselineRow{64, 8, "3.66", "1.00", "1.39", "1.27", "1.27"},
                      PiperBaselineRow{64, 80, "4.72", "1.00", "1.00", "1.00", "1.00"},
                      PiperBaselineRow{128, 2, "4.88", "1.00", "4.71", "3.19", "none"},
                      PiperBaselineRow{128, 8, "7.30", "1.00", "1.34", "1.28", "1.28"},
                      PiperBaselineRow{128, 80, "9.18", "1.00", "1.00", "1.00", "1.00"},
                      PiperBaselineRow{512, 2, "20.15", "1.00", "4.10", "3.29", "none"},
                      PiperBaselineRow{512, 8, "28.86", "1.00", "1.33", "1.29", "1.29"},
                      PiperBaselineRow{512, 80, "32.52", "1.00", "1.00", "1.06", "1.06"},
                      PiperBaselineRow{1024, 2, "40.15", "1.00", "3.89", "3.28", "none"},
                      PiperBaselineRow{1024, 8, "56.71", "1.00", "1.32", "1.30", "1.30"},
                      PiperBaselineRow{1024, 80, "63.78", "1.00", "1.00", "1.11", "1.11"},
                      PiperBaselineRow{2048, 2, "79.71", "1.04", "3.87", "3.27", "none"},
                      PiperBaselineRow{2048, 8, "105.04", "1.04", "1.26", "1.28", "1.28"},
                      PiperBaselineRow{2048, 80, "111.35", "1.01", "1.00", "1.08", "1.08"}));

// Without layers of that name all are shared out.
TEST(PiperEqualSplit, OfAllLayersIsTheAuthors) {
  const PiperProfile profile = piper_input("gnmt");
  const auto expect = [&](std::int64_t devices, double gibibytes, const std::string& time) {
    PiperOptions options = as_measured(devices, gibibytes, 256);
    const PiperResult result = piper_equal_split(profile, options);
    EXPECT_THAT(check_piper(profile, options, result), IsEmpty());
    ASSERT_EQ(result.found(), time != "none");
    if (result.found()) {
      EXPECT_PRED2(rounds_to_six_digits, result.time_per_sample, time);
    }
  };
  expect(2, 2.5, "325.026");
  expect(2, 3.5, "260.227");
  expect(4, 1.2, "none");
  expect(4, 2.5, "162.513");
  expect(8, 1.2, "137.518");
  expect(8, 2.4, "81.2567");
}

// Two layers of 4 s with 8 bytes of weights, 10 bytes between them, at 10 bytes/s; no memory to speak of.
PiperProfile two_layers() {
  PiperProfile profile;
  profile.file = "two.json";
  profile.devices = 2;
  profile.memory = 1e9;
  profile.bandwidth = 10;
  profile.micro_batches = 4;
  for (std::int64_t i = 0; i < 2; ++i) {
    PiperProfile::Way way{.degree = 1, .recompute = false, .time = 4, .parameters = 8};
    way.memory_per_micro_batch = 6;
    way.memory_fixed = 16;
    (i == 0 ? way.sync_backward : way.sync_forward).push_back({std::to_string(1 - i), 0});
    PiperProfile::Node node{.id = i, .name = "layer", .ways = {way}};
    way.recompute = true;
    way.time = 5;
    way.memory_per_micro_batch = 1;
    way.memory_fixed = 20;
    node.ways.push_back(way);
    profile.nodes.push_back(node);
  }
  profile.edges = {{0, 1, 10}};
  return profile;
}

TEST(PiperByHand, SplitsOrReplicates) {
  // One stage on two replicas: 8/2 + 4·1/2·16/(4·10) = 4.8. Two stages: 4 + 2·10/10 = 6.
  const PiperResult result = piper(two_layers());
  EXPECT_DOUBLE_EQ(result.time_per_sample, 4.8);
  ASSERT_EQ(result.stages.size(), 1U);
  EXPECT_EQ(result.stages[0].data, 2U);
  EXPECT_DOUBLE_EQ(piper(two_layers(), {.data_parallel = false}).time_per_sample, 6);
}

TEST(PiperByHand, RecomputesTheStageThatHoldsMore) {
  // Two stages: the first has two micro-batches in flight, 6·2 + 16 = 28 bytes plain, 1·2 + 20 = 22
  // recomputed; the second one, 22 and 21.
  const PiperOptions tight{.memory = 22.5, .data_parallel = false};
  const PiperResult result = piper(two_layers(), tight);
  EXPECT_DOUBLE_EQ(result.time_per_sample, 7);
  ASSERT_EQ(result.stages.size(), 2U);
  EXPECT_THAT(result.stages[0].recomputed, ::testing::ElementsAre(0));
  EXPECT_THAT(result.stages[1].recomputed, IsEmpty());
  EXPECT_THAT(piper(two_layers(), {.memory = 20}).why, HasSubstr("no plan fits 2 devices of 20 bytes"));
}

TEST(PiperByHand, LayersWithoutTimeTakeNone) {
  PiperProfile profile = two_layers();
  profile.edges.clear();
  for (PiperProfile::Node& node : profile.nodes) {
    for (PiperProfile::Way& way : node.ways) way.time = 0;
  }
  const PiperResult result = piper(profile);
  ASSERT_TRUE(result.found());
  EXPECT_EQ(result.time_per_sample, 0);
}

TEST(PiperByHand, ALayerThatNoAllowedDegreeRunsHasNoPlan) {
  PiperProfile profile = two_layers();
  for (PiperProfile::Way& way : profile.nodes[1].ways) way.degree = 4;
  EXPECT_FALSE(piper(profile).found());
  EXPECT_TRUE(piper(profile, {.devices = 5}).found());
}

TEST(PiperCheck, FindsWhatIsWrong) {
  const PiperProfile profile = two_layers();
  const PiperOptions options{.data_parallel = false};
  const PiperResult right = piper(profile, options);
  const auto with = [&](const std::function<void(PiperResult&)>& change) {
    PiperResult wrong = right;
    change(wrong);
    const std::vector<std::string> said = check_piper(profile, options, wrong);
    return said.empty() ? std::string() : said.front();
  };
  EXPECT_THAT(with([](PiperResult& r) { r.time_per_sample = 5; }), HasSubstr("time per sample is another"));
  EXPECT_THAT(with([](PiperResult& r) { r.stages[0].recomputed = {0}; }), HasSubstr("takes another time"));
  EXPECT_THAT(with([](PiperResult& r) { r.stages[1].nodes.clear(); }), HasSubstr("in no stage"));
  EXPECT_THAT(with([](PiperResult& r) { r.stages[0].data = 2; }),
              HasSubstr("data parallelism is not allowed"));
  EXPECT_THAT(with([](PiperResult& r) { std::swap(r.stages[0], r.stages[1]); }), HasSubstr("in flight"));
}

TEST(PiperRefuses, WhatItsModelHasNot) {
  PiperProfile profile = two_layers();
  profile.nodes[0].ways[1].parameters = 9;
  EXPECT_THAT(testing::refusal([&] { piper(profile); }),
              HasSubstr("two.json: layer 0 has two ways at degree 1"));
  profile = two_layers();
  profile.nodes[1].ways[0].sync_forward.clear();
  EXPECT_THAT(testing::refusal([&] { piper(profile); }), HasSubstr("layer 1 has no syncTimeFw for layer 0"));
  profile = two_layers();
  profile.edges.push_back({1, 0, 1});
  EXPECT_THAT(testing::refusal([&] { piper(profile); }), HasSubstr("has no syncTimeFw for layer 1"));
  EXPECT_THAT(testing::refusal([&] { piper(two_layers(), {.devices = 0}); }), HasSubstr("expected 1 to"));
}

// Layers whose two ways save memory at one price each, so that the heuristic's order does not depend on y.
PiperProfile random_piper(Rng& rng) {
  PiperProfile profile;
  profile.file = "random.json";
  profile.devices = static_cast<std::int64_t>(1 + rng.below(4));
  profile.memory = static_cast<double>(20 + rng.below(60));
  profile.bandwidth = static_cast<double>(1 + rng.below(20));
  profile.micro_batches = static_cast<std::int64_t>(1 + rng.below(6));
  const std::size_t layers = 2 + rng.below(3);
  for (std::size_t v = 1; v < layers; ++v) {
    for (std::size_t u = 0; u < v; ++u) {
      if (rng.below(2) == 0) profile.edges.push_back({u, v, static_cast<double>(rng.below(5))});
    }
  }
  for (std::size_t v = 0; v < layers; ++v) {
    PiperProfile::Node node{.id = static_cast<std::int64_t>(7 * v + 1), .name = "layer"};
    for (const std::uint32_t degree : {1U, 2U}) {
      if (degree == 2 && rng.below(4) == 0) continue;
      PiperProfile::Way way{
          .degree = degree, .recompute = false, .time = static_cast<double>(2 + rng.below(9)) / degree};
      way.parameters = static_cast<double>(rng.below(9));
      way.memory_per_micro_batch = static_cast<double>(2 + rng.below(6));
      way.memory_fixed = way.parameters * 2;
      for (const PiperProfile::Edge& edge : profile.edges) {
        if (edge.to == v)
          way.sync_forward.push_back({std::to_string(7 * edge.from + 1), static_cast<double>(rng.below(3))});
        if (edge.from == v)
          way.sync_backward.push_back({std::to_string(7 * edge.to + 1), static_cast<double>(rng.below(3))});
      }
      node.ways.push_back(way);
      if (rng.below(3) == 0) continue;
      way.recompute = true;
      way.time *= 1.25;
      way.memory_per_micro_batch /= 2;
      node.ways.push_back(way);
    }
    profile.nodes.push_back(node);
  }
  return profile;
}

// A stage's time by the definition, its ways by the authors' heuristic; endless if nothing fits.
double stage_time_by_hand(const PiperProfile& profile, const std::vector<bool>& inside, std::uint32_t t,
                          std::uint32_t d, std::int64_t y) {
  struct Pick {
    double price, time, bytes;
    std::size_t node;
  };
  const double endless = std::numeric_limits<double>::infinity();
  double time = 0, bytes = 0, border = 0, parameters = 0;
  std::vector<Pick> swaps;
  const auto need = [&](const PiperProfile::Way& way) {
    return way.memory_per_micro_batch * static_cast<double>(y) + way.memory_fixed;
  };
  for (std::size_t v = 0; v < inside.size(); ++v) {
    if (!inside[v]) continue;
    std::vector<PiperProfile::Way> ways;
    for (const PiperProfile::Way& way : profile.nodes[v].ways) {
      if (way.degree == t) ways.push_back(way);
    }
    if (ways.empty()) return endless;
    time += ways[0].time;
    bytes += need(ways[0]);
    parameters += ways[0].parameters;
    if (ways.size() > 1 && need(ways[1]) < need(ways[0]))
      swaps.push_back({(ways[1].time - ways[0].time) / (need(ways[0]) - need(ways[1])),
                       ways[1].time - ways[0].time, need(ways[0]) - need(ways[1]), v});
    for (const PiperProfile::Edge& edge : profile.edges) {
      if (edge.to == v && !inside[edge.from]) border += edge.bytes;
      if (edge.from == v && !inside[edge.to]) border += edge.bytes;
      for (const auto* peers : {&ways[0].sync_forward, &ways[0].sync_backward}) {
        for (const PiperProfile::PeerBytes& peer : *peers) {
          const bool in = edge.to == v && peers == &ways[0].sync_forward &&
                          peer.peer == std::to_string(7 * edge.from + 1) && !inside[edge.from];
          const bool out = edge.from == v && peers == &ways[0].sync_backward &&
                           peer.peer == std::to_string(7 * edge.to + 1) && !inside[edge.to];
          if (in || out) border += peer.bytes;
        }
      }
    }
  }
  std::sort(swaps.begin(), swaps.end(), [](const Pick& a, const Pick& b) {
    return std::tie(a.price, a.node) < std::tie(b.price, b.node);
  });
  for (const Pick& pick : swaps) {
    if (bytes <= profile.memory) break;
    bytes -= pick.bytes;
    time += pick.time;
  }
  if (bytes > profile.memory + 1e-9) return endless;
  return time / d +
         (2 * border / d + 4.0 * (d - 1) / d * parameters / static_cast<double>(profile.micro_batches)) /
             profile.bandwidth;
}

// Stages from the last to the first, every way to cut and every degree.
double piper_brute_force(const PiperProfile& profile, const std::vector<bool>& placed, std::int64_t devices,
                         std::int64_t s) {
  const std::size_t count = placed.size();
  if (std::find(placed.begin(), placed.end(), false) == placed.end()) return 0;
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t bits = 1; bits < (std::size_t{1} << count); ++bits) {
    std::vector<bool> inside(count), after = placed;
    bool legal = true;
    for (std::size_t v = 0; v < count; ++v) {
      inside[v] = (bits >> v & 1) != 0;
      legal = legal && !(inside[v] && placed[v]);
      after[v] = after[v] || inside[v];
    }
    for (const PiperProfile::Edge& edge : profile.edges)
      legal = legal && (!after[edge.from] || after[edge.to]);
    if (!legal) continue;
    for (const std::uint32_t t : {1U, 2U}) {
      for (std::uint32_t d = 1; t * d <= devices; ++d) {
        const std::int64_t with = s + d;
        if (profile.micro_batches % d != 0 || with > std::min(profile.micro_batches, profile.devices))
          continue;
        const double own = stage_time_by_hand(profile, inside, t, d, (with + d - 1) / d);
        if (own < best)
          best = std::min(best, std::max(own, piper_brute_force(profile, after, devices - t * d, with)));
      }
    }
  }
  return best;
}

TEST(PiperBruteForce, EqualsTheSearch) {
  Rng rng(7);
  int found = 0, several = 0, recomputed = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const PiperProfile profile = random_piper(rng);
    const PiperResult result = piper(profile);
    const double best =
        piper_brute_force(profile, std::vector<bool>(profile.nodes.size()), profile.devices, 0);
    EXPECT_EQ(result.found(), best < std::numeric_limits<double>::infinity()) << trial;
    if (!result.found()) continue;
    EXPECT_NEAR(result.time_per_sample, best, 1e-9 * best) << trial;
    EXPECT_THAT(check_piper(profile, {}, result), IsEmpty()) << trial;
    ++found;
    several += result.stages.size() > 1 ? 1 : 0;
    recomputed += std::any_of(result.stages.begin(), result.stages.end(),
                              [](const PiperStage& stage) { return !stage.recomputed.empty(); })
                      ? 1
                      : 0;
  }
  EXPECT_GT(found, 150);
  EXPECT_GT(several, 40);
  EXPECT_GT(recomputed, 10);
}

}  // namespace
}  // namespace espalier::literal
