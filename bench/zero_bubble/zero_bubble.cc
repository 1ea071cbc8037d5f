// How do our zero-bubble orders compare with those of Zero Bubble's authors? Parts, by name on the command
// line:
//
//   published  their four settings: bubble of the longest span beside the figures of their program
//   equal      F = I = W, eight devices: bubbles and idle clocks beside their closed forms and their program
//   between    their four settings in memory for 1.5 p micro-batches, beside ours for p: no figures of theirs
//   uneven     stages uneven by up to 30 %: the search beside the heuristic
//   optimum    small cases: the search beside all orders there are
//   seconds    what making orders takes, processor time of one thread
//
// Prints CSV without a header: part, case, what, ours, theirs, difference (of seconds: theirs / ours).

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "espalier/base/rng.h"
#include "espalier/planners/orders/best_order.h"
#include "espalier/planners/orders/named_orders.h"
#include "espalier/planners/orders/search.h"
#include "espalier/planners/orders/zero_bubble_fill.h"
#include "espalier/planners/orders/zero_bubble_v.h"
#include "espalier/schedule/order_file.h"
#include "espalier/schedule/schedule.h"
#include "espalier/schedule/v_schedules.h"
#include "espalier/sim/simulate.h"
#include "testing/stage_line_case.h"

namespace {

using namespace espalier;  // NOLINT: a program
using espalier::testing::longest_span;
using espalier::testing::staged_line;
using espalier::testing::StagedLine;
using espalier::testing::StageLineCase;
using Layout = StageLine::Layout;

void print_row(const char* part, const std::string& name, const char* what, double ours, double theirs,
               double difference) {
  std::printf("%s,%s,%s,%.6g,%.6g,%.3g\n", part, name.c_str(), what, ours, theirs, difference);
}

// Times in microseconds, of a whole device. Activations of a transformer layer: 34 h + 5 a s bytes a token,
// of which W needs 32 h (hidden size h, a heads, s tokens): what the authors' program counts.
struct Setting {
  const char* name;
  std::size_t places;
  std::uint32_t micro_batches;
  std::int64_t forward, input, weight, hop;
  std::int64_t hidden, heads;
  double one, two, v;  // their bubbles
};
constexpr Setting kSettings[] = {
    {"1.5B", 8, 24, 18522, 18086, 9337, 601, 2304, 24, 0.1585, 0.0433, 0.0703},
    {"6.2B", 8, 24, 29718, 29444, 19927, 527, 4096, 32, 0.1323, 0.0029, 0.0403},
    {"14.6B", 16, 48, 11347, 11248, 8132, 377, 5120, 40, 0.1397, 0.0066, 0.0498},
    {"28.3B", 32, 96, 10419, 10207, 7715, 408, 6144, 48, 0.1421, 0.0038, 0.0531},
};

StageLineCase case_of(const Setting& of, std::size_t chunks, Layout layout) {
  const std::int64_t taken = 34 * of.hidden + 5 * of.heads * 1024, weights = 32 * of.hidden;
  const auto parts = static_cast<std::int64_t>(chunks);
  const auto part = [&](std::int64_t us) { return nanoseconds(us * 1000 / parts); };
  return {.places = of.places,
          .chunks = chunks,
          .layout = layout,
          .micro_batches = of.micro_batches,
          .times = {{part(of.forward), part(of.input), part(of.weight)}},
          .hop = microseconds(of.hop),
          .saved = Bytes(taken / parts * 1000),
          .saved_for_input = Bytes((taken - weights) / parts * 1000)};
}

// The least bubble of all rules' orders, simulated in full.
double least_bubble(const StageLineCase& of, std::uint32_t limit,
                    std::vector<FilledOrder> (*fills)(const StageLine&, const LineCosts&)) {
  const StagedLine line = staged_line(of);
  const StageLine row = find_line(line.model, of.layout).line.value();
  double least = 1;
  for (const FilledOrder& fill : fills(row, line_costs(line.model, line.cluster, row, limit))) {
    const StagedModel model =
        with_orders(line.model, Orders(lists_on_devices(row, line.model, of.places, fill.order)));
    const Schedule schedule = make_schedule(model, of.places);
    if (!check_schedule(model, schedule).empty()) continue;
    least = std::min(least, longest_span(simulate(model, line.cluster, schedule)).bubble);
  }
  return least;
}

void published() {
  for (const Setting& setting : kSettings) {
    const auto p = static_cast<std::uint32_t>(setting.places);
    const StageLineCase one = case_of(setting, 1, Layout::kLoop), v = case_of(setting, 2, Layout::kV);
    const auto row = [&](const char* what, double ours, double theirs) {
      print_row("published", setting.name, what, ours, theirs, ours - theirs);
    };
    row("ZB-1p", least_bubble(one, p, zero_bubble_fills), setting.one);
    row("ZB-2p", least_bubble(one, 2 * p, zero_bubble_fills), setting.two);
    row("ZB-V", least_bubble(v, p, zero_bubble_v_fills), setting.v);
  }
}

// F = I = W of ten microseconds, messages free.
StageLineCase equal_case(std::size_t places, std::size_t chunks) {
  const Duration unit = microseconds(10);
  return {.places = places,
          .chunks = chunks,
          .layout = chunks == 1 ? Layout::kLoop : Layout::kV,
          .micro_batches = 24,
          .times = {{unit, unit, unit}}};
}

espalier::testing::LongestSpan span_of(const StageLineCase& of, const std::string& name) {
  const StagedLine line = staged_line(of);
  const GeneratedOrders orders = make_orders(*parse_named_orders(name), line.model, line.cluster);
  const StagedModel model = with_orders(line.model, Orders(orders.lists.value()));
  return longest_span(simulate(model, line.cluster, make_schedule(model, of.places)));
}

void equal() {
  const auto row = [](const char* what, std::size_t chunks, const char* orders, double theirs) {
    const double ours = span_of(equal_case(8, chunks), orders).bubble;
    print_row("equal", "p8 m24", what, ours, theirs, ours - theirs);
  };
  row("ZB-1p", 1, "zb-greedy,limit=8", 0.0886);
  row("ZB-2p", 1, "zb-greedy,limit=16", 0);
  row("ZB-V", 2, "zbv,limit=8", 0);
  row("V-Half", 2, "v-half", 0.1056);
  row("V-Min", 2, "v-min", 0.1579);
  const std::pair<std::size_t, std::vector<int>> idle_clocks[] = {{4, {11, 8, 5, 3, 0}},
                                                                  {8, {23, 20, 17, 14, 11, 8, 5, 3, 0}}};
  for (const auto& [places, theirs] : idle_clocks) {
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      const std::string halves = std::to_string(places + i);
      const Duration idle =
          span_of(equal_case(places, 2), "v-flex,halves=" + halves).span - microseconds(10 * 6 * 24);
      const auto ours = to_milliseconds(idle) * 100;
      print_row("equal", "p" + std::to_string(places) + " m24 holds " + halves + "/2", "V-Flex idle clocks",
                ours, theirs[i], ours - theirs[i]);
    }
  }
}

void between() {
  for (const Setting& setting : kSettings) {
    const auto p = static_cast<std::uint32_t>(setting.places);
    const StageLineCase one = case_of(setting, 1, Layout::kLoop);
    const double ours = least_bubble(one, p + p / 2, zero_bubble_fills),
                 less = least_bubble(one, p, zero_bubble_fills);
    print_row("between", setting.name, "ZB-1.5p beside 1p", ours, less, ours - less);
  }
}

StageLineCase uneven_case(Rng& rng, std::size_t places, std::uint32_t micro_batches, std::uint32_t held) {
  StageLineCase of{.places = places, .micro_batches = micro_batches, .hop = microseconds(50)};
  const auto draw = [&] { return microseconds(700 + static_cast<std::int64_t>(rng.below(601))); };
  for (std::size_t s = 0; s < places; ++s) of.times.push_back({draw(), draw(), draw()});
  of.saved = Bytes(1'000'000);
  of.memory = Bytes(1'000'000 * held + 100'000);  // and room for messages
  return of;
}

void uneven() {
  for (const std::uint32_t held : {3U, 6U}) {
    Rng rng(held);
    int better = 0, worse = 0;
    for (int i = 0; i < 14; ++i) {
      const StageLineCase of = uneven_case(rng, 3, 5, held);
      const StagedLine line = staged_line(of);
      const StageLine row = find_line(line.model, Layout::kLoop).line.value();
      OrderJudge judge(line.model, line.cluster);
      BestOrder heuristic(judge, line.cluster);
      for (const FilledOrder& fill :
           zero_bubble_fills(row, line_costs(line.model, line.cluster, row, held))) {
        heuristic.consider(lists_on_devices(row, line.model, 3, fill.order));
      }
      const SearchedOrder found = search_order(line.model, line.cluster);
      const double ours = to_milliseconds(found.evaluation.iteration);
      const double theirs = to_milliseconds(heuristic.evaluation().iteration);
      print_row("uneven", "p3 m5 holds " + std::to_string(held) + " #" + std::to_string(i), "ms", ours,
                theirs, ours / theirs - 1);
      better += ours < theirs;
      worse += ours > theirs || heuristic.lack() > Bytes() || found.evaluation.overflow;
    }
    const std::string name = "p3 m5 holds " + std::to_string(held);
    print_row("uneven", name, "better of 14", better, 0, better);
    print_row("uneven", name, "worse of 14", worse, 0, worse);
  }
}

// All lists of F, I and W for m micro-batches.
void add_lists(std::vector<Step>& list, StageId stage, std::size_t m, std::size_t f, std::size_t i,
               std::size_t w, std::vector<std::vector<Step>>& all) {
  if (w == m) all.push_back(list);
  const auto take = [&](bool may, ActionKind kind, std::size_t df, std::size_t di, std::size_t dw) {
    if (!may) return;
    list.emplace_back(kind, stage);
    add_lists(list, stage, m, f + df, i + di, w + dw, all);
    list.pop_back();
  };
  take(f < m, ActionKind::kForward, 1, 0, 0);
  take(i < f, ActionKind::kInputGradient, 0, 1, 0);
  take(w < i, ActionKind::kWeightGradient, 0, 0, 1);
}

Duration optimum(const StagedLine& line, std::size_t places, std::size_t m) {
  std::vector<std::vector<std::vector<Step>>> all(places);
  for (std::size_t s = 0; s < places; ++s) {
    std::vector<Step> list;
    add_lists(list, StageId(s), m, 0, 0, 0, all[s]);
  }
  OrderJudge judge(line.model, line.cluster);
  BestOrder best(judge, line.cluster);
  std::vector<std::size_t> at(places, 0);
  OrderLists lists(places);
  while (true) {
    for (std::size_t s = 0; s < places; ++s) lists[s] = all[s][at[s]];
    best.consider(lists);
    std::size_t s = 0;
    while (s < places && ++at[s] == all[s].size()) at[s++] = 0;
    if (s == places) return best.evaluation().iteration;
  }
}

void optima() {
  Rng rng(7);
  const std::pair<std::size_t, std::uint32_t> sizes[] = {{2, 3}, {2, 4}, {3, 3}};
  for (const auto& [places, micro_batches] : sizes) {
    for (int i = 0; i < 3; ++i) {
      const StagedLine line = staged_line(
          uneven_case(rng, places, micro_batches, i == 0 ? 2 : static_cast<std::uint32_t>(places)));
      const double ours = to_milliseconds(search_order(line.model, line.cluster).evaluation.iteration);
      const double best = to_milliseconds(optimum(line, places, micro_batches));
      print_row(
          "optimum",
          "p" + std::to_string(places) + " m" + std::to_string(micro_batches) + " #" + std::to_string(i),
          "ms", ours, best, ours / best - 1);
    }
  }
}

void seconds() {
  struct Size {
    std::size_t places;
    std::uint32_t micro_batches;
    double theirs;
  };
  const auto name = [](const Size& size) {
    return "p" + std::to_string(size.places) + " m" + std::to_string(size.micro_batches);
  };
  const auto time = [&](const char* what, const Size& size, Layout layout, auto make) {
    Setting setting = kSettings[1];
    setting.places = size.places;
    setting.micro_batches = size.micro_batches;
    const StageLineCase of = case_of(setting, layout == Layout::kV ? 2 : 1, layout);
    const StagedLine line = staged_line(of);
    const StageLine row = find_line(line.model, layout).line.value();
    const double ours = best_of(3, [&] { make(line, row); });
    print_row("seconds", name(size), what, ours, size.theirs, size.theirs / ours);
  };
  const auto limited = [](auto fills) {
    return [fills](const StagedLine& line, const StageLine& row) {
      fills(row, line_costs(line.model, line.cluster, row, static_cast<std::uint32_t>(row.places())));
    };
  };
  for (const Size& size : {Size{8, 24, 0.007}, {16, 128, 0.07}, {32, 256, 0.35}, {64, 512, 1.4}}) {
    time("ZB-1p", size, Layout::kLoop, limited(zero_bubble_fills));
  }
  time("ZB-V", {64, 512, 2.8}, Layout::kV, limited(zero_bubble_v_fills));
  time("V-Half", {32, 256, 11.4}, Layout::kV,
       [](const StagedLine& line, const StageLine&) { v_half(line.model, 32); });
  time("V-Min", {32, 256, 8.0}, Layout::kV,
       [](const StagedLine& line, const StageLine&) { v_min(line.model, 32); });
}

}  // namespace

int main(int argc, char** argv) {
  const std::pair<std::string, void (*)()> parts[] = {{"published", published}, {"equal", equal},
                                                      {"between", between},     {"uneven", uneven},
                                                      {"optimum", optima},      {"seconds", seconds}};
  for (const auto& [name, part] : parts) {
    if (argc == 1 || std::find(argv + 1, argv + argc, name) != argv + argc) part();
  }
}
