#include "espalier/plan/staged_model.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/cost/text.h"
#include "espalier/graph/text.h"
#include "espalier/plan/json.h"
#include "espalier/plan/text.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

Training training_of(const PipelinePlan& plan) {
  Training training;
  training.batch = plan.batch;
  return training;
}

// Stages a plan that passes its checker, checks the result and returns it.
StagedModel staged(const Graph& graph, const Cluster& cluster, const CostTable& costs,
                   const PipelinePlan& plan) {
  EXPECT_THAT(check_plan(graph, cluster, plan), IsEmpty());
  StagedModel model = stage_model(graph, cluster, costs, training_of(plan), plan);
  EXPECT_THAT(check_staged_model(model, cluster), IsEmpty());
  const std::string json = print_json(staged_model_to_json(model, cluster));
  EXPECT_EQ(staged_model_from_json(parse_json(json, "p"), "p", cluster), model);
  return model;
}

// Two towers of 16 × 16 weights and a head. At micro-batch 4 an activation has 4·16·4 = 256 bytes.
constexpr const char* kTowers =
    "batch 1..64\n"
    "x = input() : f32[b,16]\n"
    "ids = input() : i64[b]\n"
    "wi = parameter(wi) : f32[16,16]\n"
    "wt = parameter(wt) : f32[16,16]\n"
    "pi = buffer(pi) : f32[8]\n"
    "mask = ne(ids) : bool[b] @duplicable @class=mask\n"
    "img = linear(x, wi) : f32[b,16] @class=lin\n"
    "act = relu(img) : f32[b,16] @class=relu\n"
    "flat = view(act) : f32[16*b] @view @class=view\n"
    "txt = linear(x, wt, mask) : f32[b,16] @class=lin\n"
    "sims = matmul(flat, txt, pi) : f32[b,16] @class=mm\n"
    "loss = sum(sims, mask) : f32[] @class=sum\n"
    "return loss\n";

constexpr const char* kTowerCosts =
    "overhead A100-80GB action=10us neighbour=100 adam=1us+1000ps/B\n"
    "cost mask A100-80GB batch=4 f=1us\n"
    "cost lin A100-80GB batch=4 f=2ms i=2ms w=2ms saved=in0,in1 between=256B workspace=1KiB\n"
    "cost relu A100-80GB batch=4 f=1ms i=1ms saved=out0\n"
    "cost view A100-80GB batch=4\n"
    "cost mm A100-80GB batch=4 f=1ms i=1ms saved=in0,in1 private=64B\n"
    "cost sum A100-80GB batch=4 f=1ms i=1ms\n";

constexpr const char* kThreeStages =
    "batch 16 micro_batch 4 schedule 1f1b\n"
    "stage img gpu:0 { img act flat }\n"
    "stage txt gpu:1 { mask txt }\n"
    "stage head gpu:2 { mask sims loss }\n";

struct Towers {
  Graph graph = parse_graph(kTowers);
  Cluster cluster = parse_cluster("2xA100-80GB+1xA100-80GB");
  CostTable costs = parse_costs(kTowerCosts);
  StagedModel stage(const std::string& text) const {
    return staged(graph, cluster, costs, parse_plan(text, graph, cluster));
  }
};

TEST(StagedModel, EachStorageIsCountedOnceAndWhereItBelongs) {
  const StagedModel model = Towers().stage(kThreeStages);
  const StageMemory& img = model.stages[0].memory;
  EXPECT_EQ(img.parameters, Bytes(1024));
  EXPECT_EQ(img.gradients, Bytes(1024));
  EXPECT_EQ(img.optimizer_state, Bytes(2048));
  // x is kept by the linear; relu keeps its output, whose view crosses: that storage is the crossing's.
  EXPECT_EQ(img.saved, Bytes(256));
  EXPECT_EQ(img.between_halves, Bytes(256));
  // In forward img lives from the linear (1 KiB of workspace) to relu. In backward relu's gradient (as large)
  // lives until the linear has run with its workspace, beside the fresh gradient of wi.
  EXPECT_EQ(img.forward_workspace, Bytes(1024 + 256));
  EXPECT_EQ(img.backward_workspace, Bytes(256 + 1024 + 1024));
  // The norm of the gradient of wi, 256 numbers: a copy and its squares, 8 bytes each.
  EXPECT_EQ(img.update_workspace, Bytes(256 * 16));

  const StageMemory& head = model.stages[2].memory;
  EXPECT_EQ(head.buffers, Bytes(32));
  EXPECT_EQ(head.saved, Bytes(64));  // private; both operands arrive from elsewhere
  // ids (8·4) lives until mask is made; mask (4) until the loss, with sims (256) and the loss (4).
  EXPECT_EQ(head.forward_workspace, Bytes(4 + 256 + 4));
}

TEST(StagedModel, CrossingsSayWhoKeepsWhat) {
  const StagedModel model = Towers().stage(kThreeStages);
  ASSERT_EQ(model.crossings.size(), 2u);  // mask has a copy in each stage, inputs are read locally
  const Crossing& flat = model.crossings[0];
  EXPECT_EQ(flat.tensor, "flat");
  EXPECT_EQ(flat.from, StageId(0));
  EXPECT_EQ(flat.output, Bytes(256));
  EXPECT_TRUE(flat.saved_by_producer);
  EXPECT_TRUE(flat.returns);
  EXPECT_THAT(flat.readers, ElementsAre(Crossing::Reader{StageId(2), true, Bytes(256), Bytes(256)}));
  const Crossing& txt = model.crossings[1];
  EXPECT_FALSE(txt.saved_by_producer);  // the linear keeps its inputs only
  EXPECT_THAT(txt.readers, ElementsAre(Crossing::Reader{StageId(2), true, Bytes(256), Bytes(256)}));
}

TEST(StagedModel, TimesAreSumsWithNeighbourFactorAndOverheads) {
  const StagedModel model = Towers().stage(kThreeStages);
  // img shares its host with txt: (2 + 1) ms · 1.1 + 10 µs; backward (2 + 1) and 2 ms.
  const StageTimes& img = model.stages[0].replicas[0].times;
  EXPECT_EQ(img.forward, microseconds(3300 + 10));
  EXPECT_EQ(img.input_gradient, microseconds(3300));
  EXPECT_EQ(img.weight_gradient, microseconds(2200));
  EXPECT_EQ(img.overhead, microseconds(10));  // once for B; once each for I and W
  EXPECT_EQ(img.backward(), microseconds(3300 + 2200 + 10));
  EXPECT_EQ(img.input_half() + img.weight_half(), microseconds(3300 + 2200 + 20));
  EXPECT_EQ(img.update, microseconds(1) + nanoseconds(1024));
  EXPECT_EQ(img.recompute, Duration());
  // head is alone on its host; its mask takes 1 µs and no backward.
  const StageTimes& head = model.stages[2].replicas[0].times;
  EXPECT_EQ(head.forward, microseconds(2001 + 10));
  EXPECT_EQ(head.backward(), microseconds(2000 + 10));
}

TEST(StagedModel, RecomputedOperatorsDropWhatOnlyTheyKeep) {
  const std::string text = std::string(kThreeStages);
  const std::string recomputed =
      std::string(text).replace(text.find("{ img act flat }"), 16, "{ img act flat } recompute { act flat }");
  const StagedModel model = Towers().stage(recomputed);
  const StagedStage& img = model.stages[0];
  // relu's output is made again from img, which is kept instead, beside x.
  EXPECT_EQ(img.memory.saved, Bytes(256 + 256));
  EXPECT_EQ(img.memory.recomputed, Bytes(256));
  EXPECT_FALSE(model.crossings[0].saved_by_producer);
  EXPECT_EQ(img.replicas[0].times.recompute, microseconds(1100 + 10));
  // What a recomputed operator reads from another stage stays.
  const std::string head = std::string(text).replace(text.find("{ mask sims loss }"), 18,
                                                     "{ mask sims loss } recompute { mask sims loss }");
  EXPECT_TRUE(Towers().stage(head).crossings[0].readers[0].saved);
  EXPECT_EQ(Towers().stage(head).stages[2].memory.saved, Bytes(32));  // ids, to make the mask again
  EXPECT_EQ(Towers().stage(head).stages[2].memory.recomputed, Bytes(64));
}

TEST(StagedModel, ReplicasReduceTheirGradients) {
  const StagedModel model = Towers().stage(
      "batch 16 micro_batch 4\nstage img gpu:0 | gpu:1 { img act flat }\nstage rest gpu:2 { mask txt sims "
      "loss }\n");
  EXPECT_EQ(model.stages[0].reduced, Bytes(1024));
  EXPECT_EQ(model.stages[1].reduced, Bytes(0));
  EXPECT_EQ(model.stages[0].replicas.size(), 2u);
}

TEST(StagedModel, PiecesHaveTheSmallerMicroBatch) {
  const StagedModel model = Towers().stage(
      "batch 16 micro_batch 4\nstage img gpu:0 { img act flat }\n"
      "stage rest gpu:2 { mask txt sims loss } micro_batch 2\n");
  ASSERT_EQ(model.crossings.size(), 1u);
  EXPECT_EQ(model.crossings[0].output, Bytes(256));
  EXPECT_EQ(model.crossings[0].readers[0].bytes, Bytes(128));
  EXPECT_EQ(model.crossings[0].readers[0].gradient, Bytes(128));
  EXPECT_EQ(model.stages[1].micro_batches, 8u);
}

TEST(StagedModel, OrderWithoutDataIsAToken) {
  const auto tokens = [](const std::string& rule) {
    const StagedModel model =
        Towers().stage("batch 16 micro_batch 4 tokens " + rule +
                       "\nstage img gpu:0 { img act flat }\nstage txt gpu:1 { mask txt } after img\n"
                       "stage head gpu:2 { mask sims loss } after img txt\n");
    std::vector<Crossing> found;
    for (const Crossing& crossing : model.crossings) {
      if (crossing.token) found.push_back(crossing);
    }
    return found;
  };
  EXPECT_THAT(tokens("none"), IsEmpty());
  for (const char* rule : {"both", "free", "forward"}) {
    const std::vector<Crossing> found = tokens(rule);
    ASSERT_EQ(found.size(), 1u) << rule;
    EXPECT_EQ(found[0].from, StageId(0));
    EXPECT_THAT(found[0].readers, ElementsAre(Crossing::Reader{StageId(1), false, Bytes(), Bytes()}));
    EXPECT_EQ(found[0].returns, rule != std::string("forward"));
  }
}

TEST(StagedModel, ATiedParameterHasACopyAndATie) {
  const Graph graph = parse_graph(
      "x = input() : i64[b]\nw = parameter(emb.weight, tied=head.weight) : f32[10,4]\n"
      "e = embedding(w, x) : f32[b,4] @class=e\ny = linear(e, w) : f32[b,10] @class=y\n"
      "loss = mean(y) : f32[] @class=m\nreturn loss\n");
  const Cluster cluster = parse_cluster("3xA100-80GB");
  const CostTable costs = parse_costs(
      "cost e A100-80GB batch=4 f=1us w=1us saved=in1\ncost y A100-80GB batch=4 f=1us i=1us w=1us "
      "saved=in0,in1\n"
      "cost m A100-80GB batch=4 f=1us i=1us\n");
  const StagedModel model = staged(
      graph, cluster, costs,
      parse_plan("batch 8 micro_batch 4\nstage a gpu:0 { e }\nstage b gpu:1 { y }\nstage c gpu:2 { loss }\n",
                 graph, cluster));
  EXPECT_THAT(model.ties, ElementsAre(Tie{"emb.weight", Bytes(160), {StageId(0), StageId(1)}}));
  EXPECT_EQ(model.stages[0].memory.parameters, Bytes(160));
  EXPECT_EQ(model.stages[1].memory.parameters, Bytes(160));
  EXPECT_EQ(model.stages[2].memory.parameters, Bytes(0));
  EXPECT_EQ(model.stages[0].memory.saved, Bytes(32));  // the indices
}

TEST(StagedModel, WithoutAGradientNothingComesBack) {
  const Graph graph = parse_graph(
      "x = input() : f32[b]\nw = parameter(w) : f32[1]\nmark = argmax(x) : i64[b] @class=a\n"
      "y = take(w, mark) : f32[b] @class=b\nloss = sum(y) : f32[] @class=a\nreturn loss\n");
  const Cluster cluster = parse_cluster("2xA100-80GB");
  const CostTable costs =
      parse_costs("cost a A100-80GB batch=4 f=1us\ncost b A100-80GB batch=4 f=1us w=1us saved=in1\n");
  const StagedModel model =
      staged(graph, cluster, costs,
             parse_plan("batch 8 micro_batch 4\nstage a gpu:0 { mark }\nstage b gpu:1 { y loss }\n", graph,
                        cluster));
  ASSERT_EQ(model.crossings.size(), 1u);
  EXPECT_FALSE(model.crossings[0].returns);
  EXPECT_EQ(model.crossings[0].readers[0].gradient, Bytes());
  EXPECT_TRUE(model.crossings[0].readers[0].saved);
}

TEST(StagedModel, TensorParallelGroupsTakeTheirVariant) {
  Towers example;
  CostTableParts parts = example.costs.parts();
  for (std::size_t i = parts.rows.size(); i-- > 0;) {
    CostRow half = parts.rows[i];
    half.variant.tensor_parallel = 2;
    half.points[0].cost.forward = half.points[0].cost.forward / 2;
    parts.rows.push_back(half);
  }
  const std::string text =
      "batch 16 micro_batch 4\nstage img gpu:0 + gpu:1 { img act flat }\nstage rest gpu:2 { mask txt sims "
      "loss }\n";
  const PipelinePlan plan = parse_plan(text, example.graph, example.cluster);
  const StagedModel model = staged(example.graph, example.cluster, CostTable(parts), plan);
  EXPECT_EQ(model.stages[0].replicas[0].times.forward, microseconds(1650 + 10));
  EXPECT_EQ(model.stages[0].memory.parameters, Bytes(512));
  EXPECT_THAT(refusal([&] { example.stage(text); }), HasSubstr("for 2 devices"));
}

TEST(StagedModel, ACellThatSavesWhatIsNotThereIsNamed) {
  Towers example;
  CostTableParts parts = example.costs.parts();
  for (CostRow& row : parts.rows) {
    if (row.op_class == "relu") row.points[0].cost.saved = {{SavedTensor::Side::kInput, 3}};
  }
  const PipelinePlan plan = parse_plan(kThreeStages, example.graph, example.cluster);
  EXPECT_THAT(refusal([&] {
                stage_model(example.graph, example.cluster, CostTable(parts), training_of(plan), plan);
              }),
              HasSubstr("'relu' saves input 3, but operator 'act' has 1"));
}

// ---- an independent computation by sets and maps ----

// A local storage by its name: "own t", "received t" or "state n" (docs/semantics.md §3, §4).
class Slow {
 public:
  Slow(const Graph& graph, const CostTable& costs, const Cluster& cluster, const PipelinePlan& plan)
      : graph_(graph), costs_(costs), cluster_(cluster), plan_(plan) {}

  bool holds(std::size_t x, OperatorId op) const {
    const auto& operators = plan_.stages[x].operators;
    return std::count(operators.begin(), operators.end(), op) > 0;
  }

  std::string key(std::size_t x, TensorId id) const {
    const Tensor& tensor = graph_.tensor(id);
    if (tensor.role != TensorRole::kActivation) return "state " + std::to_string(tensor.storage.index());
    if (!holds(x, *tensor.producer)) return "received " + tensor.name;
    const Operator& op = graph_.op(*tensor.producer);
    for (const TensorId input : op.inputs) {
      if (graph_.tensor(input).storage == tensor.storage) return key(x, input);
    }
    return "own " + tensor.name;
  }

  OperatorCost cost(std::size_t x, OperatorId op, const Replica& replica) const {
    const OperatorCosts costs(graph_, cluster_, costs_, plan_.stages[x].micro_batch);
    return costs.of(op, cluster_.device(replica.devices[0]).kind);
  }

  bool gradient(OperatorId op) const {
    for (const TensorId output : graph_.op(op).outputs) {
      if (graph_.tensor(output).requires_grad) return true;
    }
    return false;
  }

  void compare(const StagedModel& model) {
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) compare_stage(x, model);
    std::size_t crossings = 0;
    for (const Crossing& crossing : model.crossings)
      crossings += crossing.token ? 0 : crossing.readers.size();
    EXPECT_EQ(crossings, crossing_pairs());
    std::map<std::string, std::set<std::size_t>> holders;
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      for (const OperatorId op : plan_.stages[x].operators) {
        for (const TensorId input : graph_.op(op).inputs) {
          const auto p = graph_.tensor(input).parameter;
          if (p && graph_.parameter(*p).trainable) holders[graph_.parameter(*p).names[0]].insert(x);
        }
      }
    }
    std::size_t ties = 0;
    for (const auto& [name, stages] : holders) ties += stages.size() > 1 ? 1 : 0;
    EXPECT_EQ(model.ties.size(), ties);
    for (const Tie& tie : model.ties) {
      std::set<std::size_t> stages;
      for (const StageId s : tie.stages) stages.insert(s.index());
      EXPECT_EQ(stages, holders[tie.parameter]);
    }
  }

 private:
  std::size_t crossing_pairs() const {
    std::set<std::pair<std::size_t, std::size_t>> pairs;
    for (std::size_t x = 0; x < plan_.stages.size(); ++x) {
      for (const OperatorId op : plan_.stages[x].operators) {
        for (const TensorId t : graph_.op(op).inputs) {
          if (graph_.tensor(t).producer && !holds(x, *graph_.tensor(t).producer)) pairs.emplace(t.index(), x);
        }
      }
    }
    return pairs.size();
  }

  void compare_stage(std::size_t x, const StagedModel& model) {
    const Stage& stage = plan_.stages[x];
    const auto again = [&](OperatorId op) {
      return std::count(stage.recompute.begin(), stage.recompute.end(), op) > 0;
    };
    std::map<std::string, std::int64_t> bytes;
    std::map<std::string, std::pair<std::size_t, std::size_t>> life;
    std::map<std::string, OperatorId> maker;
    std::set<std::string> kept, kept_again, for_weights, crossing, wants_gradient;
    std::map<std::string, std::size_t> last_gradient;
    std::int64_t parameters = 0, buffers = 0, saved = 0, recomputed = 0, between = 0;
    std::int64_t saved_for_input = 0, recomputed_for_input = 0;
    for (std::size_t i = 0; i < stage.operators.size(); ++i) {
      const OperatorId id = stage.operators[i];
      const Operator& op = graph_.op(id);
      for (const auto* tensors : {&op.inputs, &op.outputs}) {
        for (const TensorId t : *tensors) {
          const std::string k = key(x, t);
          const bool input = graph_.tensor(t).role == TensorRole::kInput;
          if (life.try_emplace(k, input ? 0 : i, i).second) {
            bytes[k] = graph_.tensor(t).bytes(stage.micro_batch).count();
            if (const auto p = graph_.tensor(t).parameter) {
              (graph_.parameter(*p).trainable ? parameters : buffers) += bytes[k];
            } else if (graph_.tensor(t).role == TensorRole::kConstant) {
              buffers += bytes[k];
            }
            if (tensors == &op.outputs) maker.emplace(k, id);
          }
          life[k].second = i;
          if (tensors == &op.inputs && gradient(id)) last_gradient[k] = i;
          if (tensors == &op.outputs && graph_.tensor(t).requires_grad) wants_gradient.insert(k);
        }
      }
    }
    for (const OperatorId id : stage.operators) {
      const Operator& op = graph_.op(id);
      std::int64_t own = 0, own_for_weights = 0, halves = 0;
      for (const Replica& replica : stage.replicas) {
        const OperatorCost c = cost(x, id, replica);
        own = std::max(own, c.private_bytes.count());
        own_for_weights = std::max(own_for_weights, (c.private_bytes - c.private_for_input).count());
        halves = std::max(halves, c.between_halves.count());
        for (const SavedTensor& s : c.saved) {
          const std::string k =
              key(x, s.side == SavedTensor::Side::kInput ? op.inputs[s.index] : op.outputs[s.index]);
          (again(id) && maker.contains(k) && again(maker[k]) ? kept_again : kept).insert(k);
          if (!s.for_input_only) for_weights.insert(k);
        }
      }
      (again(id) ? recomputed : saved) += own;
      (again(id) ? recomputed_for_input : saved_for_input) += own - own_for_weights;
      between += halves;
      if (!again(id)) continue;
      for (const TensorId t : op.inputs) {
        if (maker.contains(key(x, t)) && again(maker[key(x, t)])) continue;
        kept.insert(key(x, t));
        for_weights.insert(key(x, t));
      }
    }
    for (const Crossing& c : model.crossings) {
      if (c.token) continue;
      const TensorId t = tensor_named(c.tensor);
      if (c.from.index() == x) crossing.insert(key(x, t));
      for (const Crossing::Reader& reader : c.readers) {
        if (reader.stage.index() != x) continue;
        EXPECT_EQ(reader.saved, kept.contains(key(x, t))) << c.tensor;
        EXPECT_EQ(reader.for_input_only, reader.saved && !for_weights.contains(key(x, t))) << c.tensor;
        const BatchSize piece = std::min(stage.micro_batch, plan_.stages[c.from.index()].micro_batch);
        EXPECT_EQ(reader.bytes, graph_.tensor(t).bytes(piece));
      }
      if (c.from.index() == x) {
        EXPECT_EQ(c.saved_by_producer, kept.contains(key(x, t))) << c.tensor;
        EXPECT_EQ(c.for_input_only, c.saved_by_producer && !for_weights.contains(key(x, t))) << c.tensor;
      }
    }
    check_outputs(x, model, bytes, kept);
    const auto state = [&](const std::string& k) { return k[0] == 's' && bytes.contains(k) && !is_input(k); };
    std::set<std::string> transient;
    for (const auto& [k, size] : bytes) {
      const bool received = k[0] == 'r';
      const std::int64_t for_input = for_weights.contains(k) ? 0 : size;
      if (!received && !state(k) && kept.contains(k) && !crossing.contains(k)) {
        saved += size;
        saved_for_input += for_input;
      }
      if (kept_again.contains(k) && !kept.contains(k)) {
        recomputed += size;
        recomputed_for_input += for_input;
      }
      if (!received && !state(k) && !kept.contains(k) && !crossing.contains(k)) transient.insert(k);
    }
    const StageMemory& memory = model.stages[x].memory;
    EXPECT_EQ(memory.parameters, Bytes(parameters));
    EXPECT_EQ(memory.buffers, Bytes(buffers));
    EXPECT_EQ(memory.saved, Bytes(saved));
    EXPECT_EQ(memory.recomputed, Bytes(recomputed));
    EXPECT_EQ(memory.saved_for_input, Bytes(saved_for_input));
    EXPECT_EQ(memory.recomputed_for_input, Bytes(recomputed_for_input));
    EXPECT_EQ(memory.between_halves, Bytes(between));
    std::int64_t forward = 0, backward = 0;
    for (std::size_t i = 0; i < stage.operators.size(); ++i) {
      std::int64_t workspace = 0;
      for (const Replica& replica : stage.replicas) {
        workspace = std::max(workspace, cost(x, stage.operators[i], replica).workspace.count());
      }
      std::int64_t alive = workspace;
      for (const std::string& k : transient) {
        if (life[k].first <= i && i <= life[k].second) alive += bytes[k];
      }
      forward = std::max(forward, alive);
      alive = 0;
      if (gradient(stage.operators[i])) {
        alive = workspace;
        std::set<std::size_t> fresh;
        for (const TensorId t : graph_.op(stage.operators[i]).inputs) {
          const auto p = graph_.tensor(t).parameter;
          if (p && graph_.parameter(*p).trainable && fresh.insert(t.index()).second) {
            alive += graph_.parameter(*p).bytes().count();
          }
        }
      }
      for (const std::string& k : wants_gradient) {
        if (k[0] != 'o' || crossing.contains(k)) continue;
        const std::size_t last = last_gradient.contains(k) ? last_gradient[k] : life[k].first;
        if (life[k].first <= i && i <= last) alive += bytes[k];
      }
      backward = std::max(backward, alive);
    }
    EXPECT_EQ(memory.forward_workspace, Bytes(forward));
    EXPECT_EQ(memory.backward_workspace, Bytes(backward));
    std::int64_t update = 0;  // 16 bytes a number; all are in f32, on kinds that are no CPU
    for (const OperatorId id : stage.operators) {
      for (const TensorId t : graph_.op(id).inputs) {
        const auto p = graph_.tensor(t).parameter;
        if (p && graph_.parameter(*p).trainable)
          update = std::max(update, 4 * graph_.parameter(*p).bytes().count());
      }
    }
    EXPECT_EQ(memory.update_workspace, Bytes(update));
  }

  // The outputs of a stage's crossings: each storage once, unless it is counted elsewhere.
  void check_outputs(std::size_t x, const StagedModel& model, std::map<std::string, std::int64_t>& bytes,
                     const std::set<std::string>& kept) const {
    std::map<std::string, std::int64_t> found, expected;
    for (const Crossing& c : model.crossings) {
      if (c.token || c.from.index() != x) continue;
      const std::string k = key(x, tensor_named(c.tensor));
      found[k] += c.output.count();
      const bool elsewhere = (k[0] == 's' && !is_input(k)) || (k[0] == 'r' && kept.contains(k));
      if (k[0] == 'r' && !elsewhere) {
        expected.try_emplace(
            k, graph_.tensor(tensor_named(c.tensor)).bytes(plan_.stages[x].micro_batch).count());
      } else {
        expected[k] = elsewhere ? 0 : bytes[k];
      }
    }
    EXPECT_EQ(found, expected);
  }

  bool is_input(const std::string& k) const {
    for (const Tensor& t : graph_.tensors()) {
      if (t.role == TensorRole::kInput && k == "state " + std::to_string(t.storage.index())) return true;
    }
    return false;
  }

  TensorId tensor_named(const std::string& name) const {
    for (std::size_t i = 0; i < graph_.tensors().size(); ++i) {
      if (graph_.tensors()[i].name == name) return TensorId(i);
    }
    throw InternalError("no tensor " + name);
  }

  const Graph& graph_;
  const CostTable& costs_;
  const Cluster& cluster_;
  const PipelinePlan& plan_;
};

struct RandomCase {
  Graph graph;
  CostTable costs;
};

// Operators of every kind that the rules tell apart: views, in-place groups, duplicables, integers without
// gradient, shared parameters, buffers, constants.
RandomCase random_case(Rng& rng) {
  std::string text =
      "batch 1..64\nx = input() : f32[b,3]\nids = input() : i64[b]\nw0 = parameter(w0) : f32[3,3]\n"
      "w1 = parameter(w1) : f32[5]\nb0 = buffer(b0) : f32[7]\nc0 = constant() : f32[2]\n";
  std::vector<std::string> floats{"x"}, integers{"ids"}, free{"ids"};
  std::string costs;
  const auto pick = [&](const std::vector<std::string>& from) { return from[rng.below(from.size())]; };
  const auto add = [&](const std::string& name, const std::string& call, const std::string& rest,
                       std::size_t inputs) {
    text += name + " = " + call + " : " + rest + " @class=" + name + "\n";
    for (const char* kind : {"A100-80GB", "V100-16GB"}) {
      const std::uint64_t own = rng.below(50);
      costs += "cost " + name + " " + kind + " batch=4 f=" + std::to_string(rng.below(9)) +
               "us i=" + std::to_string(rng.below(9)) + "us w=1us private=" + std::to_string(own) +
               "B private-for-input=" + std::to_string(rng.below(own + 1)) +
               "B between=" + std::to_string(rng.below(5)) + "B workspace=" + std::to_string(rng.below(99)) +
               "B";
      std::string saved;
      for (std::size_t i = 0; i < inputs; ++i) {
        if (rng.below(3) == 0) saved += ",in" + std::to_string(i) + (rng.below(2) == 0 ? "/i" : "");
      }
      if (rng.below(3) == 0) saved += rng.below(2) == 0 ? ",out0/i" : ",out0";
      costs += (saved.empty() ? "" : " saved=" + saved.substr(1)) + "\n";
    }
  };
  const std::uint64_t count = 4 + rng.below(14);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string n = "o" + std::to_string(i);
    const std::string rows = std::to_string(1 + rng.below(5));
    switch (rng.below(8)) {
      case 0:
        add(n, "view(" + pick(floats) + ")", "f32[3*b] @view", 1);
        floats.push_back(n);
        break;
      case 1:
        add(n, "mask(" + pick(free) + ")", "i64[b] @duplicable", 1);
        free.push_back(n);
        integers.push_back(n);
        break;
      case 2:
        add(n, "argmax(" + pick(floats) + ")", "i64[b]", 1);
        integers.push_back(n);
        break;
      case 3: {  // a group that writes its own storage
        const std::string group = " @colocate=" + std::to_string(i);
        add(n + "a", "linear(" + pick(floats) + ", w0)", "f32[b,3]" + group, 2);
        add(n + "b", "relu_(" + n + "a)", "f32[b,3] @inplace" + group, 1);
        add(n, "mul(" + n + "b, w1)", "f32[b," + rows + "]" + group, 2);
        floats.push_back(n);
        break;
      }
      case 4:
        add(n, "take(" + pick(floats) + ", " + pick(integers) + ", b0, c0)", "f32[b," + rows + "]", 4);
        floats.push_back(n);
        break;
      default:
        add(n, "mix(" + pick(floats) + ", " + pick(floats) + (rng.below(2) == 0 ? ", w0)" : ", w1)"),
            "f32[b," + rows + "]", 3);
        floats.push_back(n);
    }
  }
  return {parse_graph(text), parse_costs(costs)};
}

// Cuts of the operator order, with duplicable operators beside their readers; none if a group is cut.
std::optional<PipelinePlan> random_plan(const Graph& graph, const Cluster& cluster, Rng& rng) {
  const std::size_t count = graph.operators().size();
  const std::size_t stages = 1 + rng.below(4);
  PipelinePlan plan;
  plan.batch = BatchSize(16);
  plan.tokens = static_cast<TokenRule>(rng.below(4));
  std::set<std::size_t> cuts{count};
  while (cuts.size() < std::min(stages, count)) cuts.insert(1 + rng.below(count - 1));
  std::size_t begin = 0, device = 0;
  for (const std::size_t end : cuts) {
    Stage stage;
    stage.name = "s" + std::to_string(plan.stages.size());
    stage.micro_batch = BatchSize(rng.below(4) == 0 ? 8 : 4);
    std::set<OperatorId> own;
    for (std::size_t i = begin; i < end; ++i) own.insert(OperatorId(i));
    for (std::size_t i = end; i-- > 0;) {
      if (!own.contains(OperatorId(i))) continue;
      for (const OperatorId u : graph.predecessors(OperatorId(i))) {
        if (graph.op(u).duplicable) own.insert(u);
      }
    }
    stage.operators.assign(own.begin(), own.end());
    for (const OperatorId op : stage.operators) {
      if (rng.below(3) == 0 && graph.op(op).mutates.empty()) stage.recompute.push_back(op);
    }
    plan.stages.push_back(stage);
    const std::size_t replicas = 1 + rng.below(2);
    for (std::size_t r = 0; r < replicas; ++r) {
      plan.stages.back().replicas.push_back(
          {{DeviceId(device++)},
           round_robin(plan.micro_batches(StageId(plan.stages.size() - 1)), r, replicas)});
    }
    if (plan.stages.size() > 1 && rng.below(2) == 0) {
      plan.stages.back().after.push_back(StageId(rng.below(plan.stages.size() - 1)));
    }
    begin = end;
  }
  for (std::size_t x = 0; x < plan.stages.size(); ++x) {
    std::set<StageId> after(plan.stages[x].after.begin(), plan.stages[x].after.end());
    for (const OperatorId op : plan.stages[x].operators) {
      for (const OperatorId u : graph.predecessors(op)) {
        for (std::size_t y = 0; y < x; ++y) {
          const auto& operators = plan.stages[y].operators;
          const auto& own = plan.stages[x].operators;
          if (std::count(own.begin(), own.end(), u) == 0 &&
              std::count(operators.begin(), operators.end(), u) > 0) {
            after.insert(StageId(y));
          }
        }
      }
    }
    plan.stages[x].after.assign(after.begin(), after.end());
  }
  const std::vector<std::uint32_t> limits = in_flight_limits(plan);
  for (std::size_t x = 0; x < plan.stages.size(); ++x) plan.stages[x].in_flight = limits[x];
  const std::vector<std::string> violations = check_plan(graph, cluster, plan);
  for (const std::string& violation : violations) EXPECT_THAT(violation, ::testing::StartsWith("colocation"));
  return violations.empty() ? std::optional(plan) : std::nullopt;
}

TEST(StagedModel, EqualsASlowComputationOnRandomGraphs) {
  const Cluster cluster = parse_cluster("3xA100-80GB+5xV100-16GB");
  Rng rng(17);
  int compared = 0, crossings = 0;
  for (int i = 0; i < 700; ++i) {
    const RandomCase random = random_case(rng);
    const auto plan = random_plan(random.graph, cluster, rng);
    if (!plan) continue;
    const StagedModel model = staged(random.graph, cluster, random.costs, *plan);
    Slow(random.graph, random.costs, cluster, *plan).compare(model);
    ++compared;
    crossings += static_cast<int>(model.crossings.size());
    if (HasFailure()) FAIL() << print_graph(random.graph) << print_plan(*plan, random.graph, cluster);
  }
  EXPECT_GT(compared, 350);
  EXPECT_GT(crossings, 500);
}

// ---- the checker ----

TEST(CheckStagedModel, EveryRuleHasItsFault) {
  Towers example;
  const StagedModel good = example.stage(
      "batch 16 micro_batch 4\nstage img gpu:0 { img act flat }\nstage txt gpu:1 { mask txt } after img\n"
      "stage head gpu:2 { mask sims loss }\n");
  const auto faults = [&](auto change) {
    StagedModel model = good;
    model.ties.push_back({"p", Bytes(4), {StageId(0), StageId(1)}});
    change(model);
    return check_staged_model(model, example.cluster);
  };
  using M = StagedModel;
  const auto one = [](const char* text) { return ElementsAre(HasSubstr(text)); };
  EXPECT_THAT(faults([](M&) {}), IsEmpty());
  EXPECT_THAT(check_staged_model(StagedModel(), example.cluster), one("no stage"));
  EXPECT_THAT(faults([](M& m) { m.stages[0].name.clear(); }), one("has no name"));
  EXPECT_THAT(faults([](M& m) { m.stages[1].name = "img"; }), one("two stages"));
  EXPECT_THAT(faults([](M& m) { m.stages[2].after = {StageId(0), StageId(1), StageId(1)}; }), one("ascend"));
  EXPECT_THAT(faults([](M& m) { m.stages[0].after = {StageId(0)}; }), one("stands after stage number 0"));
  EXPECT_THAT(faults([](M& m) {
                m.stages[1].replicas[0].micro_batches = {0, 1, 2, 2};
              }),
              ::testing::Contains(HasSubstr("do not ascend")));
  EXPECT_THAT(faults([](M& m) {
                m.stages[1].replicas[0].micro_batches = {0, 1, 2, 4};
              }),
              one("does not exist"));
  EXPECT_THAT(faults([](M& m) {
                m.stages[1].replicas[0].micro_batches = {0, 1, 2};
              }),
              one("not a partition"));
  using ::testing::Contains;
  using testing::refusal;
  EXPECT_THAT(faults([](M& m) { m.stages[1].micro_batches = 0; }), Contains(HasSubstr("has no micro-batch")));
  EXPECT_THAT(faults([](M& m) { m.stages[1].replicas.clear(); }), Contains(HasSubstr("has no replica")));
  EXPECT_THAT(faults([](M& m) { m.stages[1].replicas[0].micro_batches.clear(); }),
              Contains(HasSubstr("a replica takes no micro-batch")));
  EXPECT_THAT(faults([](M& m) { m.stages[1].in_flight = 0; }), one("limit 0"));
  EXPECT_THAT(faults([](M& m) { m.stages[1].in_flight = 5; }), one("limit 5"));
  EXPECT_THAT(faults([](M& m) { m.stages[1].replicas[0].devices.clear(); }), one("no device"));
  EXPECT_THAT(faults([](M& m) { m.stages[1].replicas[0].devices = {DeviceId(3)}; }), one("device number 3"));
  EXPECT_THAT(faults([](M& m) {
                m.stages[1].replicas[0].devices = {DeviceId(1), DeviceId(1)};
              }),
              one("stands twice"));
  EXPECT_THAT(faults([](M& m) { m.stages[1].replicas[0].times.update = nanoseconds(-1); }), one("a time"));
  EXPECT_THAT(faults([](M& m) { m.stages[1].memory.recomputed = Bytes(-1); }), one("a size"));
  EXPECT_THAT(faults([](M& m) { m.stages[1].reduced = Bytes(1); }), one("without replicas"));
  EXPECT_THAT(faults([](M& m) { m.crossings[2].from = StageId(3); }), one("comes from a stage"));
  EXPECT_THAT(faults([](M& m) { m.crossings[0].tensor.clear(); }), one("has no name"));
  EXPECT_THAT(faults([](M& m) { m.crossings[2].readers[0].stage = StageId(3); }), one("read by a stage"));
  EXPECT_THAT(faults([](M& m) { m.stages[2].after = {StageId(1)}; }),
              one("does not stand after its producer"));
  EXPECT_THAT(faults([](M& m) { m.crossings[0].readers.push_back(m.crossings[0].readers[0]); }),
              one("readers do not ascend"));
  EXPECT_THAT(faults([](M& m) { m.crossings[0].readers[0].bytes = Bytes(-1); }), one("a size"));
  EXPECT_THAT(faults([](M& m) { m.crossings[0].output = Bytes(-1); }), one("a size"));
  EXPECT_THAT(faults([](M& m) { m.crossings[1].readers[0].bytes = Bytes(1); }), one("token with bytes"));
  EXPECT_THAT(faults([](M& m) { m.crossings[1].output = Bytes(1); }), one("token with bytes"));
  EXPECT_THAT(faults([](M& m) { m.crossings[0].returns = false; }), one("does not return"));
  EXPECT_THAT(faults([](M& m) { m.crossings[0].readers[0].gradient = Bytes(); }), one("without a gradient"));
  EXPECT_THAT(faults([](M& m) {
                m.crossings[0].readers.clear();
                m.crossings[0].returns = false;
              }),
              one("no reader"));
  EXPECT_THAT(faults([](M& m) { std::swap(m.crossings[1], m.crossings[2]); }),
              one("do not ascend by producer"));
  EXPECT_THAT(faults([](M& m) { std::swap(m.crossings[0], m.crossings[1]); }), one("behind the token"));
  EXPECT_THAT(faults([](M& m) { m.crossings.insert(m.crossings.begin(), m.crossings[0]); }),
              one("stands twice"));
  EXPECT_THAT(faults([](M& m) { m.ties.push_back(m.ties[0]); }), one("stands twice"));
  EXPECT_THAT(faults([](M& m) { m.ties[0].stages.pop_back(); }), one("fewer than two"));
  EXPECT_THAT(faults([](M& m) { m.ties[0].stages = {StageId(1), StageId(0)}; }), one("ascend"));
  EXPECT_THAT(faults([](M& m) { m.ties[0].bytes = Bytes(-1); }), one("a size"));
  EXPECT_THAT(faults([](M& m) { m.ties[0].stages = {StageId(1), StageId(3)}; }), one("does not exist"));
  EXPECT_THAT(faults([](M& m) {
                m.stages[2].micro_batches = 3;
                m.stages[2].replicas[0].micro_batches = {0, 1, 2};
              }),
              ElementsAre(HasSubstr("do not fit"), HasSubstr("do not fit")));
}

TEST(StagedModel, FiguresWhoseSumOverAStepWouldOverflowAreRefused) {
  const Towers towers;
  const StagedModel fine = towers.stage(kThreeStages);
  StagedModel model = fine;
  model.stages[0].replicas[0].times.forward = Duration(std::int64_t{1} << 56);
  EXPECT_THAT(check_staged_model(model, towers.cluster), IsEmpty());  // four micro-batches: 2^58
  for (StagedStage& stage : model.stages) {
    stage.micro_batches = 1 << 10;
    stage.replicas[0].micro_batches = round_robin(1 << 10, 0, 1);
  }
  EXPECT_THAT(check_staged_model(model, towers.cluster),
              ElementsAre(HasSubstr("together take over 2^60 ns")));
  model = fine;
  model.stages[1].memory.saved = Bytes(std::int64_t{1} << 56);
  model.stages[1].in_flight = 4;
  model.stages[2].memory.parameters = model.stages[2].memory.gradients = Bytes(std::int64_t{1} << 56);
  model.stages[0].memory.parameters = Bytes(std::int64_t{1} << 56);
  EXPECT_THAT(check_staged_model(model, towers.cluster), IsEmpty());
  ClusterParts slow = towers.cluster.parts();
  for (Group& group : slow.groups) group.bandwidth = 1;
  model = fine;
  for (Crossing& crossing : model.crossings) {
    crossing.output = Bytes(std::int64_t{1} << 40);
    for (Crossing::Reader& reader : crossing.readers) {
      if (reader.bytes != Bytes()) reader.bytes = Bytes(std::int64_t{1} << 40);
    }
  }
  EXPECT_THAT(check_staged_model(model, Cluster(slow)), ElementsAre(HasSubstr("together take over 2^60 ns")));
}

}  // namespace
}  // namespace espalier
