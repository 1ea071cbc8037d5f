#pragma once

// Measures a model in short rounds, which can stand between other work of the same workers: a host changes
// its speed for seconds to minutes, and what is compared should have met the same states. Includes libtorch;
// runtime/ only.
//
// All workers measure at the same time, since a core beside a busy one is slower; then each measures alone,
// which gives the factor between the two. What met a slow state of the host counts like all else: a step will
// meet it too.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "espalier/cost/cost_table.h"
#include "espalier/runtime/data.h"
#include "espalier/runtime/link_profiler.h"
#include "espalier/runtime/loaded_model.h"
#include "espalier/runtime/pass_profiler.h"
#include "espalier/runtime/workers.h"

namespace espalier {

class ModelProfiler {
 public:
  // All must outlive it. Throws InputError where the model has no loss.
  ModelProfiler(const LoadedModel& model, const ProfileOptions& options, Workers& workers);
  ~ModelProfiler();

  // Every micro-batch size once, one update, some messages. Collective, as is the next.
  void round();

  // From all rounds so far, at least one. Everywhere the same.
  CostTable table();
  // The table's link, whose endpoints are calls alone (LinkProfiler::Endpoints). None of one worker.
  std::optional<MeasuredLink> link_of_calls();

  std::vector<BatchSize> micro_batches() const;
  double round_seconds() const { return round_seconds_; }  // the last one's; everywhere the same

 private:
  struct Size;
  static std::vector<BatchSize> sizes_of(const Graph& graph, const ProfileOptions& options);

  const Graph& graph() const { return model_.graph(); }
  // The means over workers, everywhere the same. Collective, as barrier is.
  std::vector<double> average(const std::vector<double>& mine);
  double mean_over_workers(double mine);
  void barrier();
  std::function<void()> computation_before_messages();
  void measure_passes(Size& size);
  void measure_stages(Size& size);
  void measure_first(Size& size);
  void measure_alone(Size& size);
  void measure_update(Size& size);
  void measure_gap(Size& size);
  std::vector<std::vector<std::vector<double>>> rounds_of_workers();
  KindOverhead overhead(double factor);

  const LoadedModel& model_;
  const ProfileOptions& options_;
  Workers& workers_;
  std::unique_ptr<DataSource> data_;
  std::unique_ptr<Session> session_;
  std::vector<std::unique_ptr<Size>> sizes_;  // ascending
  std::unique_ptr<LinkProfiler> link_;        // of several workers
  std::vector<double> busy_over_alone_;       // by round, at the smallest size
  std::map<OptimizerKind, std::vector<double>> updates_;
  std::uint64_t updates_done_ = 0;
  std::vector<double> gaps_;           // between two actions of a device
  std::size_t stages_ = 1;             // that the model is cut into
  std::vector<double> cut_overheads_;  // by which each action more lengthens a pass
  std::vector<double> firsts_;         // by which a forward after a wait is longer
  double round_seconds_ = 0;
};

}  // namespace espalier
