#include "espalier/zoo/task_families.h"

#include <gmock/gmock.h>

#include <set>
#include <string>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/graph/algorithms.h"
#include "espalier/zoo/random_tasks.h"
#include "espalier/zoo/task_networks.h"
#include "espalier/zoo/tiled_algebra.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using testing::refusal;
using ::testing::SizeIs;

std::size_t whole(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

TEST(TiledAlgebra, CountsAreClosedForms) {
  for (std::int64_t n = 1; n <= 12; ++n) {
    const std::int64_t pairs = n * (n - 1) / 2, triples = n * (n - 1) * (n - 2) / 6;
    const std::int64_t updates = (n - 1) * n * (2 * n - 1) / 6;
    const TaskDag cholesky = tiled_cholesky(n, Bytes(8));
    EXPECT_EQ(cholesky.tasks(), whole(n * (n + 1) * (n + 2) / 6)) << n;
    EXPECT_EQ(cholesky.edges(), whole(3 * pairs + 3 * triples)) << n;
    EXPECT_EQ(cholesky.stored(), Bytes(8 * (pairs + n))) << n;
    for (const TaskDag& graph : {tiled_lu(n, Bytes(8)), tiled_qr(n, Bytes(8))}) {
      EXPECT_EQ(graph.tasks(), whole(n * (n + 1) * (2 * n + 1) / 6)) << n;
      EXPECT_EQ(graph.edges(), whole(n * (n - 1) + 3 * updates)) << n;
      EXPECT_EQ(graph.stored(), Bytes(8 * n * n)) << n;
    }
  }
}

TEST(TiledAlgebra, WorkIsThatOfTheFactorization) {
  // Leading terms in b³: n³/3 for Cholesky, 2n³/3 for LU, 4n³/3 for QR plus what tiles cost more.
  const auto work = [](const TaskDag& graph) {
    double sum = 0;
    for (std::size_t i = 0; i < graph.tasks(); ++i) sum += graph.task(i).time;
    return sum;
  };
  const double n = 20;
  EXPECT_NEAR(work(tiled_cholesky(20, {})), n * n * n / 3, 1e-6);
  EXPECT_NEAR(work(tiled_lu(20, {})), 2 * n * n * n / 3, 1e-6);
  EXPECT_GT(work(tiled_qr(20, {})), 4 * n * n * n / 3);
}

TEST(TiledAlgebra, CholeskyOfTwoTilesByHand) {
  // potrf(0,0) → trsm(1,0) → syrk(1,1) → potrf(1,1)
  const TaskDag graph = tiled_cholesky(2, Bytes(8));
  ASSERT_EQ(graph.tasks(), 4U);
  EXPECT_EQ(graph.task(2).name, "syrk.0.1.1");
  EXPECT_THAT(graph.reads(1), ElementsAre(0U));
  EXPECT_THAT(graph.reads(2), ElementsAre(1U));
  EXPECT_THAT(graph.reads(3), ElementsAre(2U));
}

TEST(TaskNetworks, CountsOfThirtyTwoSeeds) {
  for (std::int64_t seed = 1; seed <= 32; ++seed) {
    const CellNetwork cells{.cells = 2, .nodes = 5, .seed = seed};
    const TaskDag cifar = cell_network(cells);
    EXPECT_EQ(cifar.tasks(), 2U + 8 * 16);
    EXPECT_THAT(cifar.edges(), AllOf(Ge(1U + 8 * 21), Le(1U + 8 * 25)));

    const RecurrentCells words{.steps = 7, .nodes = 6, .seed = seed};
    const TaskDag ptb = recurrent_cells(words);
    EXPECT_EQ(ptb.tasks(), 7U * 9 + 1);
    EXPECT_THAT(ptb.edges(), AllOf(Ge(7U * 10 - 1), Le(7U * 14 - 1)));

    const Translation sentence{.layers = 4, .words = 12, .seed = seed};
    const TranslationShape shape = translation_shape(sentence);
    EXPECT_THAT(shape.layers, AllOf(Ge(2), Le(4)));
    EXPECT_THAT(shape.source, AllOf(Ge(6), Le(12)));
    EXPECT_THAT(shape.target, AllOf(Ge(6), Le(12)));
    const std::int64_t l = shape.layers, s = shape.source, t = shape.target,
                       d = shape.both_directions ? 1 : 0;
    const TaskDag nmt = translation(sentence);
    EXPECT_EQ(nmt.tasks(), whole(s * (1 + l + 2 * d) + t * (l + 3) + 1)) << seed;
    EXPECT_EQ(nmt.edges(), whole(s * (2 * l + 4 * d) - l - d + t * (2 * l + 3) + s * t)) << seed;
  }
}

TEST(RandomTasks, CountsOfThirtyTwoSeeds) {
  for (std::int64_t seed = 1; seed <= 32; ++seed) {
    for (const std::int64_t tasks : {3, 4, 10, 57}) {
      const TaskDag giph =
          random_application({.tasks = tasks, .shape = 20 + 13 * seed, .degree = 1 + seed % 4, .seed = seed});
      EXPECT_EQ(giph.tasks(), whole(tasks)) << seed;
      EXPECT_THAT(giph.edges(), AllOf(Ge(whole(tasks - 1)), Le(whole(tasks * (tasks - 1) / 2))));
      EXPECT_THAT(giph.loose(), ElementsAre(whole(tasks - 1))) << "one last task";
      for (std::size_t i = 1; i < giph.tasks(); ++i) EXPECT_FALSE(giph.reads(i).empty()) << "one first task";
    }
    const TaskDag layered = layered_tasks({.layers = 6, .width = 5, .seed = seed});
    EXPECT_EQ(layered.tasks(), 30U);
    EXPECT_THAT(layered.edges(), AllOf(Ge(25U), Le(75U)));
    const TaskDag joined = fork_join({.sections = 3, .branches = 4, .length = 2, .seed = seed});
    EXPECT_EQ(joined.tasks(), 3U * (4 * 2 + 1) + 1);
    EXPECT_EQ(joined.edges(), 3U * 4 * 3);
    const TaskDag tables = embedding_tables({.tables = 9, .bottom = 2, .top = 3, .seed = seed});
    EXPECT_EQ(tables.tasks(), 9U + 2 + 1 + 3);
    EXPECT_EQ(tables.edges(), 9U + 2 + 3);
  }
}

TEST(RandomTasks, EachPairOfDevicesHasItsOwnLink) {
  const Cluster cluster = device_network({.devices = 5, .spread = 50, .latency = 100, .seed = 3});
  EXPECT_EQ(cluster.links().size(), 10U);
  for (std::size_t a = 0; a < 5; ++a) {
    for (std::size_t b = 0; b < 5; ++b) {
      if (a == b) continue;
      const Route route = cluster.route(DeviceId(a), DeviceId(b));
      EXPECT_EQ(route.links.size(), 1U);
      EXPECT_THAT(*route.bandwidth,
                  AllOf(Ge(kTaskLinkBytesPerSecond / 2), Le(kTaskLinkBytesPerSecond * 3 / 2)));
      EXPECT_THAT(route.latency, AllOf(Ge(Duration()), Le(microseconds(100))));
      EXPECT_EQ(route.bandwidth, cluster.route(DeviceId(b), DeviceId(a)).bandwidth);
    }
  }
}

TEST(RandomTasks, SpecialHardwareIsWhereTheSettingsSay) {
  const TaskDag free = random_application({.tasks = 40, .seed = 5});
  const Cluster cluster = device_network({.devices = 10, .seed = 2});
  TaskDag graph = free;
  need_hardware(graph, cluster, {});
  for (std::size_t i = 0; i < graph.tasks(); ++i) EXPECT_THAT(graph.task(i).kinds, IsEmpty());
  need_hardware(graph, cluster, {.restricted = 45, .sorts = 2, .support = 30});
  std::set<std::vector<std::string>> sorts;
  std::size_t restricted = 0;
  for (std::size_t i = 0; i < graph.tasks(); ++i) {
    EXPECT_EQ(graph.reads(i), free.reads(i));
    if (graph.task(i).kinds.empty()) continue;
    ++restricted;
    EXPECT_THAT(graph.task(i).kinds, SizeIs(3));
    sorts.insert(graph.task(i).kinds);
  }
  EXPECT_EQ(restricted, 18U);
  EXPECT_THAT(sorts, SizeIs(2));

  const Imported model = graph.scaled({}, cluster);
  std::size_t rows = 0;
  for (const Operator& op : model.graph.operators()) {
    for (const DeviceKind& kind : cluster.kinds()) rows += model.costs->find(op.op_class, kind.name) ? 1 : 0;
  }
  EXPECT_EQ(rows, 22U * 10 + 18 * 3);

  TaskDag scarce = free;  // one device has the sort
  need_hardware(scarce, cluster, {.restricted = 100, .sorts = 1, .support = 0});
  for (std::size_t i = 0; i < scarce.tasks(); ++i) EXPECT_THAT(scarce.task(i).kinds, SizeIs(1));
}

TEST(TaskFamilies, ScaleMeansTheSameInEveryFamily) {
  for (const TaskFamily& family : task_families()) {
    const Imported model = build_task_family(family, {{"microseconds", 200}, {"communication", 150}});
    ASSERT_TRUE(model.costs && model.cluster) << family.name;
    double time = 0, bytes = 0;
    const std::string& kind = model.cluster->kinds().front().name;
    for (std::size_t i = 0; i < model.graph.operators().size(); ++i) {
      const Operator& op = model.graph.op(OperatorId(i));
      time +=
          static_cast<double>(cost_at(*model.costs->find(op.op_class, kind), BatchSize(1)).forward.count());
      const TensorId output = op.outputs.front();
      if (!model.graph.readers(output).empty())
        bytes += static_cast<double>(model.graph.tensor(output).bytes(BatchSize(1)).count());
    }
    const auto tasks = static_cast<double>(model.graph.operators().size());
    EXPECT_NEAR(time / tasks, 200'000, 1) << family.name;
    EXPECT_NEAR(bytes / 7.6 / time, 1.5, 1e-3) << family.name;
  }
}

TEST(TaskFamilies, OneSeedIsOneGraph) {
  for (const TaskFamily& family : task_families()) {
    const Imported usual = build_task_family(family);
    EXPECT_EQ(usual.graph, build_task_family(family).graph) << family.name;
    EXPECT_EQ(*usual.costs, *build_task_family(family).costs) << family.name;
    const bool seeded = std::any_of(family.settings.begin(), family.settings.end(),
                                    [](const ZooSetting& setting) { return setting.name == "seed"; });
    if (seeded) {
      EXPECT_NE(usual.graph, build_task_family(family, {{"seed", 2}}).graph) << family.name;
    }
  }
}

TEST(TaskFamilies, TablesNeedEveryDevice) {
  const Imported model = build_task_family(*find_task_family("embedding-tables"), {{"tables", 60}});
  Bytes stored, memory;
  for (const Parameter& table : model.graph.parameters()) stored += table.bytes();
  for (const Device& device : model.cluster->devices()) memory += device.memory;
  EXPECT_LT(stored, memory);
  EXPECT_GT(2 * stored.count(), memory.count());
}

TEST(TaskFamilies, WrongSettingsAreRefused) {
  const TaskFamily& giph = *find_task_family("giph");
  EXPECT_EQ(find_task_family("gipf"), nullptr);
  EXPECT_THAT(refusal([&] { build_task_family(giph, {{"tasks", 2}}); }), HasSubstr("expected 3 to"));
  EXPECT_THAT(refusal([&] { build_task_family(giph, {{"tiles", 2}}); }), HasSubstr("has no setting 'tiles'"));
}

}  // namespace
}  // namespace espalier
