#include "espalier/sim/stage_price.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <thread>

#include "espalier/base/rng.h"
#include "espalier/graph/expand_backward.h"
#include "espalier/graph/text.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;

std::vector<OperatorId> ids(std::initializer_list<std::size_t> numbers) {
  std::vector<OperatorId> result;
  for (const std::size_t number : numbers) result.emplace_back(number);
  return result;
}

TEST(RunsOf, AreMaximal) {
  EXPECT_TRUE(runs_of({}).empty());
  EXPECT_THAT(runs_of(ids({7})), ElementsAre(OperatorRun{7, 7}));
  EXPECT_THAT(runs_of(ids({0, 1, 2, 4, 6, 7})),
              ElementsAre(OperatorRun{0, 2}, OperatorRun{4, 4}, OperatorRun{6, 7}));
  // All sets of nine operators: no two runs touch, and together they are the set.
  for (unsigned set = 1; set < 512; ++set) {
    std::vector<OperatorId> operators, again;
    for (std::size_t i = 0; i < 9; ++i) {
      if (set >> i & 1) operators.emplace_back(i);
    }
    std::uint32_t free_from = 0;
    for (const OperatorRun& run : runs_of(operators)) {
      EXPECT_GE(run.first, free_from);
      free_from = run.last + 2;
      for (std::size_t i = run.first; i <= run.last; ++i) again.emplace_back(i);
    }
    EXPECT_EQ(again, operators);
  }
}

// `each` devices of two kinds, one kind after the other.
Cluster two_kinds(std::size_t each) {
  ClusterParts parts;
  Group host;
  host.name = "host";
  parts.groups = {host};
  for (const char* name : {"quick", "slow"}) {
    DeviceKind kind;
    kind.name = name;
    kind.memory = gibibytes(1);
    kind.flops_f32 = kind.flops_f16 = 1e12;
    kind.memory_bandwidth = 1'000'000'000;
    for (std::size_t d = 0; d < each; ++d) {
      parts.devices.push_back(
          {name + std::to_string(d), KindId(parts.kinds.size()), GroupId(0), kind.memory});
    }
    parts.kinds.push_back(kind);
  }
  return Cluster(std::move(parts));
}

// A graph and costs from a seed, what its operators may do by `oddities`.
struct Problem {
  Rng rng;
  Graph graph;
  Cluster cluster = two_kinds(3);
  CostTable costs;
  Training training;

  enum class Oddities : std::uint8_t { kNone, kAll, kTraining };  // kTraining: all, with a backward half
  Problem(std::uint64_t seed, std::size_t operators, Oddities oddities)
      : rng(seed), graph(make_graph(operators, oddities)), costs(make_costs()) {
    training.batch = BatchSize(16);
    training.micro_batches = {BatchSize(1), BatchSize(4)};
    training.optimizer.kind = OptimizerKind::kAdam;
  }

  std::size_t pick(std::size_t bound) { return static_cast<std::size_t>(rng.below(bound)); }
  bool chance(std::size_t one_in) { return pick(one_in) == 0; }

  Graph make_graph(std::size_t operators, Oddities oddities) {
    const bool odd = oddities != Oddities::kNone;
    std::ostringstream text;
    text << "batch 1..64\nx = input() : f32[b,5]\nids = input() : f32[b,3]\ns = buffer(s) : f32[7]\n";
    const std::size_t weights = 1 + operators / 2;
    for (std::size_t w = 0; w < weights; ++w) {
      text << "w" << w << " = parameter(w" << w << (chance(5) ? ", frozen" : "") << ") : f32[" << 1 + pick(30)
           << "]\n";
    }
    if (odd) text << "mask = op(x) : f32[b,3] @class=mask @duplicable\n";
    std::vector<std::string> tensors{"x"};
    for (std::size_t i = 0; i < operators; ++i) {
      const std::string name = "t" + std::to_string(i);
      const bool view = odd && i > 0 && chance(8), two = !view && chance(8);
      // Mostly what was made lately, sometimes anything.
      const std::size_t near = std::min<std::size_t>(tensors.size(), chance(10) ? tensors.size() : 4);
      text << name << (two ? "," + name + "b" : "") << " = op(" << tensors[tensors.size() - 1 - pick(near)];
      if (chance(3)) text << ", " << tensors[tensors.size() - 1 - pick(near)];
      if (chance(2)) text << ", w" << pick(weights);
      if (chance(12)) text << ", s";
      if (chance(8)) text << ", ids";
      if (odd && chance(12)) text << ", mask";
      text << ")";
      if (!view) text << " : f32[b," << 1 + pick(9) << "]" << (two ? ", f32[b,2]" : "");
      text << " @class=c" << i << (view ? " @view" : chance(12) ? " @nograd" : "") << "\n";
      tensors.push_back(name);
      if (two) tensors.push_back(name + "b");
    }
    text << "loss = mean(" << tensors.back() << ") : f32[] @class=loss\n";
    Graph forward = parse_graph(text.str());
    const bool trained = forward.tensor(*forward.loss()).requires_grad;
    return oddities == Oddities::kTraining && trained ? expand_backward(forward) : std::move(forward);
  }

  CostTable make_costs() {
    CostTableParts parts;
    std::set<std::string> classes;  // a backward operator has its forward operator's
    const auto size = [&] { return Bytes(static_cast<std::int64_t>(pick(3) * pick(60))); };
    const auto time = [&] { return Duration(static_cast<std::int64_t>(pick(90))); };
    for (const Operator& op : graph.operators()) {
      if (!classes.insert(op.op_class).second) continue;
      for (const char* kind : {"quick", "slow"}) {
        for (const std::uint32_t degree : {1u, 2u}) {
          OperatorCost cost;
          cost.forward = time();
          cost.input_gradient = time();
          cost.weight_gradient = time();
          cost.private_bytes = size();
          cost.private_for_input =
              Bytes(static_cast<std::int64_t>(pick(narrow(cost.private_bytes.count()) + 1)));
          cost.between_halves = size();
          cost.workspace = size();
          for (std::uint32_t i = 0; i < op.inputs.size(); ++i) {
            if (chance(3)) cost.saved.push_back({SavedTensor::Side::kInput, i, chance(2)});
          }
          if (chance(3)) cost.saved.push_back({SavedTensor::Side::kOutput, 0, chance(2)});
          parts.rows.push_back({op.op_class, kind, {degree, false}, {{BatchSize(1), cost}}});
        }
      }
    }
    return CostTable(std::move(parts));
  }
};

struct Question {
  std::vector<OperatorId> operators, recompute;
  BatchSize micro_batch{1};
  std::uint32_t degree = 1;
  std::vector<KindId> kinds;
};

std::string text(const StageMemory& memory) {
  std::ostringstream out;
  out << "parameters " << memory.parameters.count() << " buffers " << memory.buffers.count() << " gradients "
      << memory.gradients.count() << " optimizer " << memory.optimizer_state.count() << " saved "
      << memory.saved.count() << " of that for I " << memory.saved_for_input.count() << " recomputed "
      << memory.recomputed.count() << " of that for I " << memory.recomputed_for_input.count() << " between "
      << memory.between_halves.count() << " forward " << memory.forward_workspace.count() << " backward "
      << memory.backward_workspace.count() << " update " << memory.update_workspace.count() << "\n";
  return out.str();
}

void write(std::ostream& out, Duration forward, Duration input, Duration weight, Duration again) {
  out << "times " << forward.count() << " " << input.count() << " " << weight.count() << " " << again.count()
      << "\n";
}

std::string text(const Problem& problem, const StagePrice& price) {
  std::ostringstream out;
  out << text(price.memory);
  for (const StagePrice::Times& t : price.times)
    write(out, t.forward, t.input_gradient, t.weight_gradient, t.recompute);
  for (const auto& each : price.outputs) {
    out << "out " << problem.graph.tensor(each.tensor).name << " " << each.bytes.count()
        << (each.saved ? " saved" : "") << (each.for_input_only ? " for I\n" : "\n");
  }
  for (const auto& each : price.received) {
    out << "in " << problem.graph.tensor(each.tensor).name << (each.saved ? " saved" : "")
        << (each.gradient ? " gradient" : "") << (each.for_input_only ? " for I\n" : "\n");
  }
  return out.str();
}

// stage_model of the set as a stage and all other operators as another. Beside its text the ties.
std::string by_stage_model(const Problem& problem, const Question& question, std::vector<std::string>& ties) {
  PipelinePlan plan;
  plan.batch = problem.training.batch;
  plan.stages.resize(2);
  Stage &asked = plan.stages[0], &others = plan.stages[1];
  asked.operators = question.operators;
  asked.recompute = question.recompute;
  for (std::size_t i = 0; i < problem.graph.operators().size(); ++i) {
    if (!std::binary_search(asked.operators.begin(), asked.operators.end(), OperatorId(i))) {
      others.operators.emplace_back(i);
    }
  }
  for (Stage* stage : {&asked, &others}) {
    stage->micro_batch = question.micro_batch;
    for (const KindId kind : question.kinds) {
      Replica replica;
      for (std::size_t i = 0; i < question.degree; ++i) replica.devices.emplace_back(3 * kind.index() + i);
      stage->replicas.push_back(replica);
    }
  }
  if (others.operators.empty()) plan.stages.pop_back();
  const StagedModel model =
      stage_model(problem.graph, problem.cluster, problem.costs, problem.training, plan);
  std::ostringstream out;
  out << text(model.stages[0].memory);
  for (const StagedReplica& replica : model.stages[0].replicas) {
    const StageTimes& t = replica.times;
    write(out, t.forward, t.input_gradient, t.weight_gradient, t.recompute);
  }
  std::vector<std::pair<std::size_t, std::string>> in, made;  // by tensor
  for (const Crossing& crossing : model.crossings) {
    if (crossing.token) continue;
    std::size_t tensor = 0;
    while (problem.graph.tensors()[tensor].name != crossing.tensor) ++tensor;
    if (crossing.from == StageId(0)) {
      made.push_back({tensor, "out " + crossing.tensor + " " + std::to_string(crossing.output.count()) +
                                  (crossing.saved_by_producer ? " saved" : "") +
                                  (crossing.for_input_only ? " for I\n" : "\n")});
    } else {
      const Crossing::Reader& reader = crossing.readers[0];
      in.push_back({tensor, "in " + crossing.tensor + (reader.saved ? " saved" : "") +
                                (reader.gradient > Bytes() ? " gradient" : "") +
                                (reader.for_input_only ? " for I\n" : "\n")});
    }
  }
  for (auto* list : {&made, &in}) {
    std::sort(list->begin(), list->end());
    for (const auto& [tensor, line] : *list) out << line;
  }
  ties.clear();
  for (const Tie& tie : model.ties) ties.push_back(tie.parameter);
  return out.str();
}

void compare(const Problem& problem, const StagePrices& prices, StagePrices::Scratch& scratch,
             const Question& question) {
  const std::vector<OperatorRun> runs = runs_of(question.operators), recompute = runs_of(question.recompute);
  const StagePrice& price =
      prices.price({runs, recompute, question.micro_batch, question.degree, question.kinds}, scratch);
  ASSERT_FALSE(price.forbidden);
  std::vector<std::string> ties, shared;
  const std::string expected = by_stage_model(problem, question, ties);
  ASSERT_EQ(text(problem, price), expected);
  for (const ParameterId id : price.shared_parameters) {
    EXPECT_TRUE(problem.graph.parameter(id).trainable);
    shared.push_back(problem.graph.parameter(id).names[0]);
  }
  for (const std::string& tie : ties) EXPECT_EQ(std::count(shared.begin(), shared.end(), tie), 1) << tie;
}

void compare_every_run(std::uint64_t seed, const Problem& problem) {
  const StagePrices prices(problem.graph, problem.cluster, problem.costs, problem.training);
  const auto scratch = StagePrices::make_scratch();
  const std::size_t operators = problem.graph.operators().size();
  for (std::size_t first = 0; first < operators; ++first) {
    Question question;
    for (std::size_t last = first; last < operators; ++last) {
      question.operators.emplace_back(last);
      question.kinds = {KindId(last % 2)};
      question.recompute = first % 2 ? question.operators : std::vector<OperatorId>();
      question.micro_batch = BatchSize(last % 3 ? 1 : 4);
      compare(problem, prices, *scratch, question);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ": " << first << " to " << last;
    }
  }
}

TEST(StagePrices, EveryRunEqualsStageModel) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    compare_every_run(
        seed, Problem(seed, 1 + seed / 2, seed % 2 ? Problem::Oddities::kAll : Problem::Oddities::kNone));
  }
}

TEST(StagePrices, EveryRunOfATrainingGraphEqualsStageModel) {
  std::size_t trained = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Problem problem(seed, 1 + seed / 3, Problem::Oddities::kTraining);
    trained += is_training_graph(problem.graph.operators()) ? 1 : 0;
    compare_every_run(seed, problem);
  }
  EXPECT_GT(trained, 10U);
}

TEST(StagePrices, AnySetAnyRecomputationAnyGroupEqualStageModel) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Problem problem(seed, 1 + seed % 40, seed % 3 ? Problem::Oddities::kAll : Problem::Oddities::kNone);
    const StagePrices prices(problem.graph, problem.cluster, problem.costs, problem.training);
    const auto scratch = StagePrices::make_scratch();
    std::vector<Question> asked;
    for (int i = 0; i < 20; ++i) {
      Question question;
      // Operators in stretches: some in, some out; of those in, some recomputed.
      bool in = problem.chance(2), again = false;
      for (std::size_t op = 0; op < problem.graph.operators().size(); ++op) {
        if (problem.chance(4)) in = !in;
        if (problem.chance(4)) again = !again && i % 3 > 0;
        if (!in) continue;
        question.operators.emplace_back(op);
        if (again) question.recompute.emplace_back(op);
      }
      if (question.operators.empty()) continue;
      question.micro_batch = BatchSize(problem.chance(2) ? 1 : 4);
      question.degree = problem.chance(3) ? 2 : 1;
      question.kinds = {KindId(problem.pick(2))};
      if (problem.chance(3)) question.kinds = {KindId(0), KindId(1)};
      compare(problem, prices, *scratch, question);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ", set " << i;
      asked.push_back(std::move(question));
    }
    for (const Question& again : asked) compare(problem, prices, *scratch, again);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ", asked again";
  }
}

// More than a scratch remembers, half of them again soon after.
TEST(StagePrices, RemembersNoAnswerForAnotherQuestion) {
  Problem problem(7, 40, Problem::Oddities::kAll);
  const StagePrices prices(problem.graph, problem.cluster, problem.costs, problem.training);
  const auto remembers = StagePrices::make_scratch();
  const std::size_t operators = problem.graph.operators().size();
  const std::vector<KindId> kinds{KindId(0), KindId(1)};
  std::vector<std::vector<OperatorRun>> asked;
  for (int i = 0; i < 12'000; ++i) {
    std::vector<OperatorRun> runs;
    if (!asked.empty() && problem.chance(2)) {
      runs = asked[asked.size() - 1 - problem.pick(std::min<std::size_t>(asked.size(), 50))];
    } else {
      for (std::size_t op = 0; op < operators; ++op) {
        if (!problem.chance(2)) continue;
        if (!runs.empty() && runs.back().last + 1 == op) {
          runs.back().last = narrow(op);
        } else {
          runs.push_back({narrow(op), narrow(op)});
        }
      }
      if (runs.empty()) continue;
      asked.push_back(runs);
    }
    const std::vector<OperatorRun> again = i % 3 == 0 ? runs : std::vector<OperatorRun>();
    const StageQuestion question{
        .operators = runs, .recompute = again, .micro_batch = BatchSize(1), .degree = 1, .kinds = kinds};
    const auto fresh = StagePrices::make_scratch();
    ASSERT_EQ(prices.price(question, *remembers), prices.price(question, *fresh)) << i;
  }
  EXPECT_GT(asked.size(), 4096U);
}

TEST(StagePrices, AMissingCellForbidsTheSetsThatNeedIt) {
  Problem problem(3, 10, Problem::Oddities::kNone);
  CostTableParts parts = problem.costs.parts();
  const std::string missing = problem.graph.operators()[4].op_class;
  std::erase_if(parts.rows, [&](const CostRow& row) {
    return row.op_class == missing && row.kind == "slow" && row.variant.tensor_parallel == 2;
  });
  const CostTable costs(std::move(parts));
  const StagePrices prices(problem.graph, problem.cluster, costs, problem.training);
  const auto scratch = StagePrices::make_scratch();
  const std::vector<OperatorRun> with{{2, 7}}, without{{0, 3}, {5, 9}};
  const std::vector<KindId> quick{KindId(0)}, slow{KindId(1)}, both{KindId(0), KindId(1)};
  const auto forbidden = [&](const std::vector<OperatorRun>& runs, std::uint32_t degree,
                             const std::vector<KindId>& kinds) {
    return prices.price({runs, {}, BatchSize(1), degree, kinds}, *scratch).forbidden;
  };
  const ForbiddenCell cell{OperatorId(4), KindId(1), 2};
  EXPECT_EQ(forbidden(with, 2, slow), cell);
  EXPECT_EQ(forbidden(with, 2, both), cell);
  EXPECT_EQ(forbidden(with, 2, quick), std::nullopt);
  EXPECT_EQ(forbidden(with, 1, slow), std::nullopt);
  EXPECT_EQ(forbidden(without, 2, slow), std::nullopt);
  EXPECT_TRUE(prices.price({with, {}, BatchSize(1), 2, slow}, *scratch).outputs.empty());
}

TEST(StagePrices, ThreadsThatAskAtOnceGetTheSameAnswers) {
  const Problem problem(5, 60, Problem::Oddities::kAll);
  const StagePrices prices(problem.graph, problem.cluster, problem.costs, problem.training);
  const auto all = [&] {
    const auto scratch = StagePrices::make_scratch();
    std::vector<StagePrice> answers;
    for (std::uint32_t first = 0; first < 60; first += 3) {
      for (const std::int64_t size : {1, 4}) {
        const std::vector<OperatorRun> runs{{first, std::min(first + 20, 59u)}};
        const std::vector<KindId> kinds{KindId(first % 2)};
        answers.push_back(prices.price({runs, {}, BatchSize(size), 1, kinds}, *scratch));
      }
    }
    return answers;
  };
  std::vector<StagePrice> a, b;
  std::thread other([&] { a = all(); });
  b = all();
  other.join();
  EXPECT_EQ(a, b);
  EXPECT_EQ(a, all());
}

}  // namespace
}  // namespace espalier
