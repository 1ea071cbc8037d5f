#include "espalier/zoo/task_families.h"

#include <algorithm>

#include "espalier/zoo/random_tasks.h"
#include "espalier/zoo/task_networks.h"
#include "espalier/zoo/tiled_algebra.h"

namespace espalier {
namespace {

using Settings = std::vector<ZooSetting>;
using Passes = TaskDag::Scale::Passes;

constexpr std::int64_t kMostSeed = std::int64_t{1} << 53;
constexpr std::int64_t kMostTasks = 20'000;

ZooSetting seed() {
  return {"seed", "what is drawn: one graph for each", 1, 0, kMostSeed};
}
ZooSetting spread() {
  return {"spread", "percent: times and bytes are uniform in 1 ± that", 50, 0, 99};
}

Settings with_scale(Settings settings, std::int64_t communication, std::int64_t devices = 3) {
  settings.push_back({"microseconds", "mean forward time of a task", 500, 1, 1'000'000});
  settings.push_back({"communication", "percent: time of all outputs over one link / time of all tasks",
                      communication, 0, 100'000});
  settings.push_back({"devices", "that it is placed on", devices, 1, 64});
  return settings;
}

TaskDag::Scale scale_of(const ZooValues& all, Passes passes = Passes::kForward) {
  return {all.at("microseconds"), all.at("communication"), passes};
}

Imported on_equal_devices(const TaskDag& graph, const ZooValues& all, Passes passes = Passes::kForward) {
  const auto devices = static_cast<std::size_t>(all.at("devices"));
  return graph.scaled(scale_of(all, passes), task_cluster(devices, gibibytes(1024)));
}

void add_networks(std::vector<TaskFamily>& families) {
  families.push_back({"cifar10", "the traversal-order study, arXiv 2201.09676; ENAS, arXiv 1802.03268",
                      "convolutional networks of drawn cells, grouped, with backward",
                      with_scale({seed(),
                                  {"cells", "normal cells in each of three groups", 2, 1, 50},
                                  {"nodes", "nodes of a cell", 5, 1, 20},
                                  {"channels", "of the first cells", 36, 1, 4096},
                                  {"image", "pixels of a side; a multiple of 4", 32, 4, 1024}},
                                 50),
                      [](const ZooValues& all) {
                        return on_equal_devices(cell_network({.cells = all.at("cells"),
                                                              .nodes = all.at("nodes"),
                                                              .channels = all.at("channels"),
                                                              .image = all.at("image"),
                                                              .seed = all.at("seed")}),
                                                all, Passes::kForwardAndBackward);
                      }});
  families.push_back({"ptb", "the traversal-order study, arXiv 2201.09676; ENAS, arXiv 1802.03268",
                      "drawn recurrent cells, unrolled, grouped, with backward",
                      with_scale({seed(),
                                  {"steps", "words", 12, 1, 500},
                                  {"nodes", "nodes of a cell", 8, 2, 40},
                                  {"hidden", "width of a node", 850, 1, 1 << 15},
                                  {"vocabulary", "words that there are", 10'000, 1, 1'000'000}},
                                 50),
                      [](const ZooValues& all) {
                        return on_equal_devices(recurrent_cells({.steps = all.at("steps"),
                                                                 .nodes = all.at("nodes"),
                                                                 .hidden = all.at("hidden"),
                                                                 .vocabulary = all.at("vocabulary"),
                                                                 .seed = all.at("seed")}),
                                                all, Passes::kForwardAndBackward);
                      }});
  families.push_back({"nmt", "the traversal-order study, arXiv 2201.09676; GNMT, arXiv 1609.08144",
                      "translation with attention of drawn size, unrolled, grouped, with backward",
                      with_scale({seed(),
                                  {"layers", "most layers", 4, 2, 16},
                                  {"words", "most words of a sentence", 12, 2, 200},
                                  {"hidden", "width of a layer", 1'024, 1, 1 << 15},
                                  {"vocabulary", "words that there are", 32'000, 1, 1'000'000}},
                                 50),
                      [](const ZooValues& all) {
                        return on_equal_devices(translation({.layers = all.at("layers"),
                                                             .words = all.at("words"),
                                                             .hidden = all.at("hidden"),
                                                             .vocabulary = all.at("vocabulary"),
                                                             .seed = all.at("seed")}),
                                                all, Passes::kForwardAndBackward);
                      }});
}

void add_tiled(std::vector<TaskFamily>& families) {
  struct Kind {
    const char* name;
    const char* what;
    TaskDag (*make)(std::int64_t, Bytes);
    std::int64_t usual;
  };
  for (const Kind& kind : {Kind{"cholesky", "Cholesky factorization in tiles", tiled_cholesky, 8},
                           Kind{"lu", "LU factorization in tiles, without pivoting", tiled_lu, 6},
                           Kind{"qr", "QR factorization in tiles", tiled_qr, 6}}) {
    families.push_back(
        {kind.name, "Buttari et al., Parallel Computing 2009", kind.what,
         with_scale({{"tiles", "of a side", kind.usual, 1, 40}, {"tile", "rows of a tile", 256, 1, 1 << 14}},
                    50),
         [make = kind.make](const ZooValues& all) {
           const std::int64_t side = all.at("tile");
           return on_equal_devices(make(all.at("tiles"), Bytes(8 * side * side)), all);
         }});
  }
}

void add_giph(std::vector<TaskFamily>& families) {
  Settings settings =
      with_scale({seed(),
                  {"tasks", "of the graph", 50, 3, kMostTasks},
                  {"shape", "percent: below 100 long and narrow, above short and wide", 100, 10, 1000},
                  {"degree", "mean edges into a task", 2, 1, 64},
                  spread(),
                  {"network", "what the devices are drawn from", 1, 0, kMostSeed},
                  {"latency", "most microseconds of a link", 100, 0, 1'000'000},
                  {"restricted", "percent of the tasks that need special hardware", 0, 0, 100},
                  {"hardware", "sorts of it", 3, 1, 64},
                  {"support", "percent of the devices that have each sort, one at least", 50, 0, 100}},
                 50, 10);
  families.push_back({"giph", "GiPH, MLSys'23; Topcuoglu et al., TPDS'02",
                      "random graphs on unequal devices, with a link for each pair", std::move(settings),
                      [](const ZooValues& all) {
                        TaskDag graph = random_application({.tasks = all.at("tasks"),
                                                            .shape = all.at("shape"),
                                                            .degree = all.at("degree"),
                                                            .spread = all.at("spread"),
                                                            .seed = all.at("seed")});
                        Cluster network = device_network({.devices = all.at("devices"),
                                                          .spread = all.at("spread"),
                                                          .latency = all.at("latency"),
                                                          .seed = all.at("network")});
                        need_hardware(graph, network,
                                      {.restricted = all.at("restricted"),
                                       .sorts = all.at("hardware"),
                                       .support = all.at("support"),
                                       .seed = all.at("seed")});
                        return graph.scaled(scale_of(all), std::move(network));
                      }});
}

void add_random(std::vector<TaskFamily>& families) {
  families.push_back({"layered", "list scheduling's usual test", "layers whose tasks read the layer before",
                      with_scale({seed(),
                                  {"layers", "one after the other", 12, 1, 1000},
                                  {"width", "tasks of a layer", 8, 1, 1000},
                                  spread()},
                                 50),
                      [](const ZooValues& all) {
                        return on_equal_devices(layered_tasks({.layers = all.at("layers"),
                                                               .width = all.at("width"),
                                                               .spread = all.at("spread"),
                                                               .seed = all.at("seed")}),
                                                all);
                      }});
  families.push_back({"fork-join", "list scheduling's usual test", "chains side by side, again and again",
                      with_scale({seed(),
                                  {"sections", "one after the other", 4, 1, 1000},
                                  {"branches", "chains of a section", 6, 1, 1000},
                                  {"length", "tasks of a chain", 4, 1, 1000},
                                  spread()},
                                 50),
                      [](const ZooValues& all) {
                        return on_equal_devices(fork_join({.sections = all.at("sections"),
                                                           .branches = all.at("branches"),
                                                           .length = all.at("length"),
                                                           .spread = all.at("spread"),
                                                           .seed = all.at("seed")}),
                                                all);
                      }});
  families.push_back(
      {"embedding-tables", "DLRM, arXiv 1906.00091; DreamShard, NeurIPS'22",
       "tables of unequal memory and time beside dense layers: packing of two resources",
       with_scale({seed(),
                   {"tables", "look-ups", 40, 1, kMostTasks},
                   {"bottom", "dense layers beside them", 3, 1, 1000},
                   {"top", "dense layers behind them", 3, 1, 1000},
                   {"memory", "percent of an even share that a device has", 130, 101, 100'000}},
                  50),
       [](const ZooValues& all) {
         const TaskDag graph = embedding_tables({.tables = all.at("tables"),
                                                 .bottom = all.at("bottom"),
                                                 .top = all.at("top"),
                                                 .seed = all.at("seed")});
         const std::int64_t devices = all.at("devices");
         const Bytes share(graph.stored().count() / devices / 100 * all.at("memory"));
         Bytes largest;
         for (std::size_t i = 0; i < graph.tasks(); ++i) largest = std::max(largest, graph.task(i).stored);
         // Beside the tables some room for what passes between tasks.
         const Bytes each = std::max(share, largest) + mebibytes(256);
         return graph.scaled(scale_of(all), task_cluster(static_cast<std::size_t>(devices), each));
       }});
}

}  // namespace

const std::vector<TaskFamily>& task_families() {
  static const std::vector<TaskFamily> kFamilies = [] {
    std::vector<TaskFamily> families;
    add_networks(families);
    add_tiled(families);
    add_giph(families);
    add_random(families);
    return families;
  }();
  return kFamilies;
}

const TaskFamily* find_task_family(std::string_view name) {
  for (const TaskFamily& family : task_families()) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

Imported build_task_family(const TaskFamily& family, const ZooValues& given) {
  return family.build(all_values(family.name, family.settings, given));
}

}  // namespace espalier
