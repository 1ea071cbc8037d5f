#include "espalier/planners/joint/guide.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "espalier/base/files.h"
#include "espalier/base/rng.h"
#include "espalier/planners/joint/joint.h"
#include "espalier/planners/joint/search.h"
#include "espalier/planners/pipeline/graphpipe.h"
#include "espalier/planners/toy_for_tests.h"
#include "testing/refusal.h"

namespace espalier::joint {
namespace {

using espalier::testing::refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two units that see the first two figures, one of them turned round: |first - 1| + 2·max(second, 0) - 3.
RatingNet::Net small_net() {
  RatingNet::Net net{.middle = std::vector<float>(MoveFigures::kCount),
                     .scale = std::vector<float>(MoveFigures::kCount, 1),
                     .layers = {{.inputs = MoveFigures::kCount,
                                 .units = 3,
                                 .weights = std::vector<float>(3 * MoveFigures::kCount),
                                 .offsets = {0, 0, 0}},
                                {.inputs = 3, .units = 1, .weights = {1, 1, 2}, .offsets = {-3}}}};
  net.middle[0] = 1;
  std::vector<float>& weights = net.layers[0].weights;
  weights[0] = 1;
  weights[MoveFigures::kCount] = -1;
  weights[2 * MoveFigures::kCount + 1] = 1;
  return net;
}

MoveFigures move_of(float first, float second) {
  MoveFigures move;
  move.values[0] = first;
  move.values[1] = second;
  return move;
}

std::string bytes_of(const MoveGuide& guide) {
  const std::string path = (std::filesystem::temp_directory_path() / "espalier_guide_test").string();
  guide.write(path, {{"made", "by hand"}});
  std::string bytes = read_file(path);
  std::remove(path.c_str());
  return bytes;
}

TEST(MoveGuide, RatesByItsNet) {
  const MoveGuide guide{RatingNet(small_net())};
  const std::vector<MoveFigures> moves{move_of(1, 0), move_of(4, 0), move_of(-1, 5), move_of(1, -5)};
  EXPECT_THAT(guide.rate(moves), ElementsAre(-3, 0, 9, -3));
  EXPECT_TRUE(guide.rate({}).empty());
}

TEST(MoveGuide, WhatOverflowsComesLast) {
  RatingNet::Net net = small_net();
  net.layers[0].weights[0] = net.layers[0].weights[MoveFigures::kCount] = std::numeric_limits<float>::max();
  net.layers[1].weights[1] = -1;  // infinity less infinity, or one of them
  const MoveGuide guide{RatingNet(net)};
  const std::vector<MoveFigures> moves{move_of(16, 0), move_of(1, 0)};
  EXPECT_THAT(guide.rate(moves), ElementsAre(std::numeric_limits<float>::lowest(), -3));
}

TEST(MoveGuide, AFileReadsBack) {
  const MoveGuide guide{RatingNet(small_net())};
  const std::string bytes = bytes_of(guide);
  const MoveGuide back = MoveGuide::parse(bytes, "guide");
  const std::vector<MoveFigures> moves{move_of(4, 1), move_of(0.5, -2)};
  EXPECT_EQ(back.rate(moves), guide.rate(moves));
  EXPECT_EQ(bytes_of(back), bytes);
}

TEST(MoveGuide, LayersThatDoNotFitTogetherAreRefused) {
  RatingNet::Net net = small_net();
  net.layers[1].inputs = 2;
  EXPECT_THROW(MoveGuide{RatingNet{net}}, InternalError);
  net = small_net();
  net.layers.pop_back();
  EXPECT_THROW(MoveGuide{RatingNet{net}}, InternalError);
}

TEST(MoveGuide, AFileThatIsNoGuideIsRefusedInOneLine) {
  EXPECT_THAT(refusal([] { MoveGuide::parse("", "mine.safetensors"); }), HasSubstr("mine.safetensors"));
  const std::string other = std::string("\x02\0\0\0\0\0\0\0{}", 10);
  EXPECT_THAT(refusal([&] { MoveGuide::parse(other, "mine.safetensors"); }),
              HasSubstr("mine.safetensors: is no guide of a search"));
  RatingNet::Net net = small_net();
  net.scale[3] = std::numeric_limits<float>::infinity();
  const std::string bytes = bytes_of(MoveGuide(RatingNet(net)));
  EXPECT_THAT(refusal([&] { MoveGuide::parse(bytes, "mine.safetensors"); }),
              HasSubstr("mine.safetensors: scale: expected finite numbers"));
}

// Whatever bytes are changed: a guide, or an error that names the file.
TEST(MoveGuide, AnyBytesAreAGuideOrAnError) {
  const std::string good = bytes_of(MoveGuide(RatingNet(small_net())));
  Rng rng(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (std::uint64_t change = 1 + rng.below(3); change > 0; --change) {
      bytes[rng.below(round % 2 == 0 ? 300 : bytes.size())] = static_cast<char>(rng.below(256));
    }
    if (round % 5 == 0) bytes.resize(rng.below(bytes.size()));
    try {
      const std::vector<MoveFigures> moves{move_of(4, 1)};
      EXPECT_EQ(MoveGuide::parse(bytes, "changed").rate(moves).size(), 1U);
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("changed"));
    }
  }
}

TEST(UsualGuide, PrefersADeviceWithLessToDoAllElseBeingEqual) {
  PlanFigures before;
  before.times.fill(0.5);
  PlanFigures better = before, worse = before;
  for (const auto time : {PlanFigures::kBusiest, PlanFigures::kEnds, PlanFigures::kClosing}) {
    better.times[time] = 0.4;
    worse.times[time] = 0.7;
  }
  const std::vector<MoveFigures> moves{figures_of(before, milliseconds(500), better),
                                       figures_of(before, milliseconds(500), worse)};
  const std::vector<float> rates = usual_guide().rate(moves);
  EXPECT_GT(rates[0], rates[1]);
}

// A chain of twelve layers on three devices, where few of many steps are judged.
struct Case {
  Toy toy = Toy(text(), devices(), 12);
  Problem problem = toy.problem();
  Space space = Space(problem);

  static std::string text() {
    std::string graph = "batch 1..64\nx = input() : f32[b]\nw = parameter(w) : f32[1]\n";
    std::string below = "x";
    for (int layer = 0; layer < 11; ++layer) {
      graph += "h" + std::to_string(layer) + " = f(" + below + ", w) : f32[b] @class=c" +
               std::to_string(1 + layer % 4) + "\n";
      below = "h" + std::to_string(layer);
    }
    return graph + "loss = f(" + below + ", w) : f32[] @class=c3\nreturn loss\n";
  }
  static std::string devices() {
    std::string text =
        "kind gpu 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1\n"
        "kind old 1GiB f32=1e12 f16=1e12 mem=100GB launch=0ns sms=1 speed=0.6\n"
        "group network 10GB latency=100us\n";
    return text + "device a gpu in network\ndevice b gpu in network\ndevice c old in network\n";
  }

  std::pair<std::vector<Proposal>, Duration> found(const MoveGuide* guide, std::size_t threads) const {
    ThreadPool pool(threads);
    Context first{.budget = {.max_states = 1'000'000}};
    const Outcome start = graphpipe(problem, {}, first);
    Context context{.budget = {.max_states = 60'000}};
    context.pool = &pool;
    Judge judge(problem, context);
    const std::optional<Proposal> begin = proposal_of(space, std::get<PipelinePlan>(*start.plan));
    EXPECT_TRUE(begin.has_value());
    std::vector<Proposal> best =
        search(space, {*begin}, {.most_moves = 24, .guide = guide}, judge, context).best;
    return {std::move(best), *judge.best()};
  }
};

TEST(GuidedSearch, FindsTheSameWithAnyNumberOfThreads) {
  const Case asked;
  const auto one = asked.found(&usual_guide(), 1), three = asked.found(&usual_guide(), 3);
  EXPECT_EQ(one, three);
}

// A guide decides what is judged: one that prefers what is worst finds something else, and nothing better
// than the best of either is lost.
TEST(GuidedSearch, AGuideDecidesWhatIsJudgedFirst) {
  RatingNet::Net wrong{.middle = std::vector<float>(MoveFigures::kCount),
                       .scale = std::vector<float>(MoveFigures::kCount, 1),
                       .layers = {{.inputs = MoveFigures::kCount,
                                   .units = 1,
                                   .weights = std::vector<float>(MoveFigures::kCount),
                                   .offsets = {0}}}};
  wrong.layers[0].weights[0] = 1;  // the busier the better
  const MoveGuide busiest{RatingNet(std::move(wrong))};
  const Case asked;
  const auto good = asked.found(&usual_guide(), 1), bad = asked.found(&busiest, 1);
  EXPECT_NE(good.first, bad.first);
  EXPECT_LE(good.second, bad.second);
}

// auto with the usual guide: its plan passes all checkers and is no slower than the planner's that it began
// with.
TEST(GuidedSearch, IsNoSlowerThanWhatItBeganWith) {
  const Case asked;
  const NamedPlanner planner{"graphpipe", [](const Problem& p, Context& c) { return graphpipe(p, {}, c); },
                             1};
  Context first{.budget = {.max_states = 200'000}};
  const Duration before = asked.toy.simulated(planner.plan(asked.problem, first));
  Context context{.budget = {.max_states = 400'000}};
  const Outcome found = joint_search(asked.problem, {planner}, {.guide = &usual_guide()}, context);
  ASSERT_TRUE(found.plan.has_value());
  EXPECT_LE(asked.toy.simulated(found), before);
}

}  // namespace
}  // namespace espalier::joint
