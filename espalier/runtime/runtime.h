#pragma once

// Training for real: what the command line and the Python module call. No libtorch in sight; results are
// plain values.
//
// A run is one or several processes (workers) that call the same function with the same arguments and
// another World::rank each. Devices of the plan are dealt to workers in blocks; a worker with several runs
// them as threads. With world.size 1 everything happens in this process. Every function throws InputError
// where the model, the plan or the data is wrong, ResourceError where memory is short, WorkerError where
// another worker failed or stayed silent.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "espalier/base/units.h"
#include "espalier/cost/cost_table.h"
#include "espalier/plan/plan_file.h"
#include "espalier/trace/trace.h"

namespace espalier {

// Another worker is gone, or a message did not come in time. Says who waited for what from whom.
class WorkerError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Requests to the scheduler that shorten waits and change no result (scheduler_hints.h).
enum class SchedulerHints : std::uint8_t { kNone, kGiven };

// This machine has not enough memory for what the plan puts on it. Says which operator asked for how much.
class ResourceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// This process among the workers of a run.
struct World {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::string address = "127.0.0.1";  // of the store where the workers meet
  std::uint16_t port = 0;
  std::optional<int> store_socket;  // of rank 0: bound to that port already, by the launcher
  bool agent_store = false;         // torchrun hosts the store itself; else rank 0 does
  std::uint32_t restart = 0;        // torchrun's restart count: keys of an earlier try are not read
  std::string host;                 // name of this host
  std::string clock;                // names the clock that this process reads (clock_offset.h)
  std::uint32_t local_rank = 0;     // among the workers of this host
  std::uint32_t local_size = 1;
  SchedulerHints scheduler_hints = SchedulerHints::kGiven;
  friend bool operator==(const World&, const World&) = default;
};

// RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_*, TORCHELASTIC_*; none of them: one process.
// ESPALIER_STORE_SOCKET: see launcher.h. ESPALIER_SCHEDULER_HINTS: "on", which is the default, or "off".
// Throws InputError where only some are there, one is not a number or the last is another word.
World world_from_environment();

struct StepReport {
  std::uint64_t step = 0;
  double loss = 0;           // mean over micro-batches
  double gradient_norm = 0;  // of all gradients, a tied parameter once
  Duration time;             // barrier to barrier
  BatchSize samples;
  double learning_rate = 0;
  std::optional<std::uint64_t> epoch = {};  // of the data; none where they are made up
  friend bool operator==(const StepReport&, const StepReport&) = default;
};

// How good the model is after a step, on data of its own.
struct EvaluationReport {
  std::uint64_t step = 0;                               // steps done
  double loss = 0;                                      // mean over samples
  std::vector<std::pair<std::string, double>> outputs;  // the model's others: means over their elements
  BatchSize samples;
  std::uint64_t left_out = 0;  // samples of the file for which no micro-batch is allowed
  Duration time;
  friend bool operator==(const EvaluationReport&, const EvaluationReport&) = default;
};

enum class TraceSteps : std::uint8_t { kNone, kLast, kAll };

// A checkpoint that is complete on disk.
struct CheckpointReport {
  std::uint64_t step = 0;  // steps done
  std::string path;
  Bytes bytes;    // of all shards
  Duration time;  // from the copy to the last flush; training went on meanwhile
  friend bool operator==(const CheckpointReport&, const CheckpointReport&) = default;
};

// A folder of checkpoints that all workers see. One is written every so many steps, and one at the end of the
// run, also of an interrupted one.
struct CheckpointOptions {
  std::string folder;
  std::uint64_t every = 0;  // steps; 0: at the end alone
  std::size_t keep = 0;     // the newest so many stay, once a newer one is complete; 0: all
  std::function<void(const CheckpointReport&)> on_checkpoint = {};  // on rank 0
};

enum class MissingNames : std::uint8_t {
  kRefused,
  kFromArchive,  // what a file of weights lacks starts with the model's values
};

struct RunOptions {
  World world;
  std::uint64_t steps = 1;  // of the training, those before a resumed checkpoint included
  std::string data;         // a safetensors file with one tensor per input; empty: synthetic, from the seed
  std::string load;         // weights to start from: safetensors, or a folder of them (weights_file.h)
  MissingNames missing = MissingNames::kRefused;  // of `load`
  // A checkpoint to go on from, or a folder of them, whose newest complete one is taken. Where that folder is
  // also the one to write to and has none, training starts at the beginning.
  std::string resume;
  std::optional<CheckpointOptions> checkpoints;
  std::string evaluation_data;       // evaluated every so many steps and after the last; empty: never
  std::uint64_t evaluate_every = 0;  // steps; 0: after the last alone
  std::string save;                  // parameters and buffers after the last step, as safetensors
  std::string record;                // a folder for batch, gradients and state of each step (docs/formats.md)
  std::string device;                // "cpu", "cuda", "cuda:1"; empty: cuda where there is one, else cpu
  std::uint32_t threads = 1;         // of each device
  // Longest wait for one message, without the time in which some worker said that it is busy (saving, the
  // reference of verify) or in which the run stood still (Ctrl-Z).
  Duration timeout = milliseconds(300'000);
  TraceSteps trace = TraceSteps::kLast;
  // Set by a signal handler: all workers finish the step, save and return. May be null.
  const std::atomic<bool>* stop = nullptr;
  // All on rank 0. What is worth knowing before the first step: what a file of weights lacks, what differs
  // from the checkpoint.
  std::function<void(const std::string&)> on_note;
  std::function<void(std::uint64_t steps_done)> on_start;  // before the first step of this run
  std::function<void(const StepReport&)> on_step;
  std::function<void(const EvaluationReport&)> on_evaluation;
  std::function<void(const StepReport&, const Trace&)> on_trace;  // of the steps that are traced
  // Called from another thread where another worker failed and this one's compute does not return. Empty: it
  // goes on; the command line ends the process.
  std::function<void(const std::string& reason)> on_stuck = {};
};

struct RunResult {               // complete on rank 0; other ranks have `steps` only
  std::uint64_t first_step = 0;  // done before, where a checkpoint was resumed
  std::vector<StepReport> steps;
  std::vector<EvaluationReport> evaluations;
  std::optional<Trace> trace;         // of the last traced step, origin measured
  bool interrupted = false;           // `stop` was set on some worker
  std::uint64_t dropped_samples = 0;  // of one epoch: the last incomplete batch
  std::vector<std::string> notes;
};

// Trains. `model` is the .pt2 file's path (the plan names it relative to itself). O(steps).
RunResult run_plan(const PlanFile& plan, const std::string& model, const RunOptions& options);

// The same micro-batches on one process, no plan: what every plan must equal.
struct ReferenceOptions {
  BatchSize batch;
  BatchSize micro_batch;
  Optimizer optimizer;
  std::uint64_t seed = 0;
  std::uint64_t steps = 1;
  std::string data, load, save, device;
  std::uint32_t threads = 1;
  std::function<void(const StepReport&)> on_step;
};
RunResult run_reference(const std::string& model, const ReferenceOptions& options);

// A plan's messages and times without its arithmetic: workers send each other as many bytes as the plan says
// and sleep for as long as each action takes by it. So a plan for many devices is tried on few cores, and
// neither model nor weights are needed. Sums of gradients take the cost model's time.
struct PacedOptions {
  World world;
  std::uint64_t steps = 5;
  double slower = 1;  // every time of the plan counts so many times: small ones are hard to keep
  Duration timeout = milliseconds(300'000);
  std::function<void(const std::string& reason)> on_stuck = {};  // as RunOptions::on_stuck
};
struct PacedResult {            // the trace on rank 0 alone
  std::vector<Duration> steps;  // barrier to barrier
  std::optional<Trace> trace;   // of the last step, origin measured
};
PacedResult run_paced(const PlanFile& plan, const PacedOptions& options);

struct VerifyOptions {
  World world;
  std::uint64_t steps = 1;  // gradients are compared after the first, parameters after the first and the last
  std::string data;
  std::string device;
  std::uint32_t threads = 1;
  Duration timeout = milliseconds(300'000);
  // The largest relative difference that counts as equal; unset: by the precision of the model's types
  // (docs/semantics.md, exactness).
  std::optional<double> tolerance = {};
  std::function<void(const std::string& reason)> on_stuck = {};  // as RunOptions::on_stuck
};

// One value that differs by more than the tolerance, or at all where bit-equality is due.
struct Difference {
  enum class What : std::uint8_t {
    kLoss,
    kGradientNorm,
    kGradient,
    kBuffer,
    kParameterAfterFirst,  // where there are several steps
    kParameter             // after the last
  } what = What::kGradient;
  std::string name;    // of the parameter or buffer
  double measure = 0;  // ‖Δ‖ / max(‖g‖, 1e-3·‖G‖); for loss and norm |Δ| / |reference|
  std::string op;      // the operator that reads it
  friend bool operator==(const Difference&, const Difference&) = default;
};

struct VerifyResult {  // complete on rank 0
  // Within the tolerance, and bit-equal where that is due. Or, with `control`: no further off than a few
  // times what a rounding error at the start makes of this model.
  bool equal = false;
  bool bit_equal = false;
  bool bit_equality_due = false;  // no replicas, nothing read in two stages, nothing recomputed in part
  double loss = 0, reference_loss = 0;
  double gradient_norm = 0, reference_gradient_norm = 0;
  std::uint64_t gradients = 0, buffers = 0, parameters = 0;  // compared
  double worst = 0;                                          // measure, over all of them
  std::string worst_name;
  double tolerance = 0;       // used
  std::string compared_with;  // in words
  // One process was run again with its parameters moved by one unit in the last place, because something was
  // beyond the tolerance: the value that is furthest beyond what that explains, its measure and the
  // control's.
  struct Control {
    std::string name;
    double plan = 0, control = 0;
  };
  std::optional<Control> control;
  std::vector<Difference> differences;  // loss, norm, gradients as backward meets them, buffers, parameters
  std::string first;    // "operator 'head' (head, model.py:12), micro-batch 3: output differs"
  std::string verdict;  // one line
};
VerifyResult verify_plan(const PlanFile& plan, const std::string& model, const VerifyOptions& options);

struct ProfileProgress {
  std::string phase;  // "operators, micro-batches of 2 4"
  std::uint32_t done = 0, total = 0;
};
struct ProfileOptions {
  World world;  // all workers measure at once; rank 0 returns the table
  std::vector<BatchSize>
      micro_batches;  // empty: the export's size if fixed, else the first three of 1, 2, 4, 8 in its range
  std::uint32_t rounds = 20;  // over all micro-batches; fewer, at least 7, where passes are long
  std::uint32_t threads = 1;
  std::uint64_t seed = 0;
  std::string device;
  std::vector<std::string> frozen;  // patterns of parameters that are not trained
  std::string kind = "cpu";         // the device kind that the rows are for: kind_here of `device`
  std::function<void(const ProfileProgress&)> on_progress;
  std::function<void(const std::string& reason)> on_stuck = {};  // as RunOptions::on_stuck
};
// Measures every operator class in whole forward and backward passes (notes on prediction:
// docs/cost-model.md), optimizer updates cold, the overhead of an action, and the link between workers where
// there are several.
CostTable profile_model(const std::string& model, const ProfileOptions& options);

// Versions and devices that the runtime sees: "torch 2.13.0, cpu, 2 cores".
std::string runtime_description();
// What a run with that RunOptions::device computes on: "cpu" or "cuda".
std::string kind_of_device(const std::string& device);
// … and how many GPUs it may use; 0 on a CPU.
int gpus_of_device(const std::string& device);
// … and the kind that a cluster has it by: "cpu", or what the driver's name of the GPU means (kind_called),
// or "cuda" where no driver says a name.
std::string kind_here(const std::string& device);
std::string machine_description();  // "AMD EPYC 7B13, 2 cores"

}  // namespace espalier
