#include "espalier/zoo/task_networks.h"

#include <array>
#include <optional>

namespace espalier {
namespace {

constexpr double kNumber = 4;  // bytes of an element

Bytes weights(double elements) {
  return Bytes(static_cast<std::int64_t>(elements * kNumber));
}

// ---- Cell networks

enum class CellOperation : std::uint8_t { kSeparable3, kSeparable5, kMean, kLargest, kIdentity };
constexpr std::array<const char*, 5> kOperationNames{"separable3", "separable5", "mean", "largest",
                                                     "identity"};

// Inputs 0 and 1 are the two cells before, 2 … the nodes.
struct CellDesign {
  struct Half {
    std::size_t from = 0;
    CellOperation operation = CellOperation::kIdentity;
  };
  std::vector<std::array<Half, 2>> nodes;
};

CellDesign draw_design(Rng& rng, std::int64_t nodes) {
  CellDesign design;
  for (std::int64_t n = 0; n < nodes; ++n) {
    std::array<CellDesign::Half, 2> node;
    for (CellDesign::Half& half : node) {
      half.from = static_cast<std::size_t>(drawn(rng, 0, n + 1));
      half.operation = static_cast<CellOperation>(rng.below(kOperationNames.size()));
    }
    design.nodes.push_back(node);
  }
  return design;
}

class CellWriter {
 public:
  explicit CellWriter(const CellNetwork& network)
      : network_(network), graph_("cifar10-" + std::to_string(network.seed)) {}

  TaskDag write() {
    Rng rng(stream_key(static_cast<std::uint64_t>(network_.seed), {1}));
    const CellDesign normal = draw_design(rng, network_.nodes), reduction = draw_design(rng, network_.nodes);
    channels_ = static_cast<double>(network_.channels);
    side_ = static_cast<double>(network_.image);
    before_ = last_ = graph_.add({"stem", "convolution", places() * 2 * 27 * channels_, places() * channels_,
                                  weights(27 * channels_)});
    for (std::int64_t group = 0; group < 3; ++group) {
      if (group > 0) {
        side_ /= 2;
        channels_ *= 2;
        cell(reduction);
      }
      for (std::int64_t i = 0; i < network_.cells; ++i) cell(normal);
    }
    graph_.add({"head", "classes", places() * channels_ + 20 * channels_, 1, weights(10 * channels_)},
               {last_});
    return std::move(graph_);
  }

 private:
  double places() const { return side_ * side_; }
  double multiplied(CellOperation operation) const {  // FLOP of a place
    switch (operation) {
      case CellOperation::kSeparable3:
      case CellOperation::kSeparable5: {
        const double kernel = operation == CellOperation::kSeparable3 ? 9 : 25;
        return 4 * (kernel * channels_ + channels_ * channels_);  // twice
      }
      case CellOperation::kMean:
      case CellOperation::kLargest:
        return 9 * channels_;
      case CellOperation::kIdentity:
        break;
    }
    return channels_;
  }
  Bytes parameters(CellOperation operation) const {
    if (operation == CellOperation::kSeparable3) return weights(2 * (9 + channels_) * channels_);
    if (operation == CellOperation::kSeparable5) return weights(2 * (25 + channels_) * channels_);
    return {};
  }

  void cell(const CellDesign& design) {
    const std::string name = "cell" + std::to_string(cells_++) + ".";
    std::vector<std::size_t> inputs{before_, last_};
    std::vector<bool> read(design.nodes.size() + 2);
    for (std::size_t n = 0; n < design.nodes.size(); ++n) {
      const std::string node = name + "node" + std::to_string(n);
      std::vector<std::size_t> halves;
      for (const CellDesign::Half& half : design.nodes[n]) {
        read[half.from] = true;
        const char* operation = kOperationNames[static_cast<std::size_t>(half.operation)];
        halves.push_back(graph_.add(
            {node + (halves.empty() ? ".left" : ".right"), operation, places() * multiplied(half.operation),
             places() * channels_, parameters(half.operation)},
            {inputs[half.from]}));
      }
      inputs.push_back(
          graph_.add({node + ".sum", "add", places() * channels_, places() * channels_}, halves));
    }
    std::vector<std::size_t> loose;
    for (std::size_t n = 2; n < inputs.size(); ++n) {
      if (!read[n]) loose.push_back(inputs[n]);
    }
    const double wide = static_cast<double>(loose.size()) * channels_ * channels_;
    before_ = last_;
    last_ = graph_.add({name + "given", "concat", 2 * places() * wide, places() * channels_, weights(wide)},
                       loose);
  }

  const CellNetwork& network_;
  TaskDag graph_;
  double channels_ = 0, side_ = 0;
  std::size_t before_ = 0, last_ = 0, cells_ = 0;
};

}  // namespace

TaskDag cell_network(const CellNetwork& network) {
  return CellWriter(network).write();
}

// ---- Recurrent cells

TaskDag recurrent_cells(const RecurrentCells& network) {
  TaskDag graph("ptb-" + std::to_string(network.seed));
  Rng rng(stream_key(static_cast<std::uint64_t>(network.seed), {2}));
  const auto nodes = static_cast<std::size_t>(network.nodes);
  std::vector<std::size_t> parent(nodes);
  std::vector<bool> read(nodes);
  for (std::size_t n = 1; n < nodes; ++n) {
    parent[n] = rng.below(n);
    read[parent[n]] = true;
  }
  const auto hidden = static_cast<double>(network.hidden), words = static_cast<double>(network.vocabulary);
  std::optional<std::size_t> state;
  std::vector<std::size_t> classified;
  for (std::int64_t t = 0; t < network.steps; ++t) {
    const std::string step = "step" + std::to_string(t) + ".";
    const auto first = [&](double elements) { return t == 0 ? weights(elements) : Bytes(); };
    std::vector<std::size_t> at(nodes), loose;
    const std::size_t word = graph.add({step + "word", "embedding", hidden, hidden, first(words * hidden)});
    for (std::size_t n = 0; n < nodes; ++n) {
      std::vector<std::size_t> reads{n == 0 ? word : at[parent[n]]};
      if (n == 0 && state) reads.push_back(*state);
      // Two products: of the value, and of the gate that mixes it with what came in.
      const double product = (n == 0 ? 8 : 4) * hidden * hidden;
      at[n] = graph.add({step + "node" + std::to_string(n), "node", product, hidden, first(product / 2)},
                        std::move(reads));
    }
    for (std::size_t n = 0; n < nodes; ++n) {
      if (!read[n]) loose.push_back(at[n]);
    }
    state = graph.add({step + "mean", "mean", static_cast<double>(loose.size()) * hidden, hidden}, loose);
    classified.push_back(
        graph.add({step + "classes", "classes", 2 * hidden * words, words, first(hidden * words)}, {*state}));
  }
  graph.add({"loss", "loss", static_cast<double>(network.steps) * words, 1}, classified);
  return graph;
}

// ---- Translation

TranslationShape translation_shape(const Translation& network) {
  Rng rng(stream_key(static_cast<std::uint64_t>(network.seed), {3}));
  TranslationShape shape;
  shape.layers = drawn(rng, 2, network.layers);
  shape.source = drawn(rng, (network.words + 1) / 2, network.words);
  shape.target = drawn(rng, (network.words + 1) / 2, network.words);
  shape.both_directions = rng.below(2) == 1;
  return shape;
}

namespace {

class TranslationWriter {
 public:
  explicit TranslationWriter(const Translation& network)
      : shape_(translation_shape(network)),
        graph_("nmt-" + std::to_string(network.seed)),
        hidden_(static_cast<double>(network.hidden)),
        vocabulary_(static_cast<double>(network.vocabulary)) {}

  TaskDag write() {
    const Line memory = encoder();
    decoder(memory);
    return std::move(graph_);
  }

 private:
  using Line = std::vector<std::size_t>;  // a task for each word

  Bytes first(std::size_t t, double elements) const { return t == 0 ? weights(elements) : Bytes(); }

  Line words(const std::string& module, std::int64_t count) {
    Line line;
    for (std::size_t t = 0; t < static_cast<std::size_t>(count); ++t)
      line.push_back(graph_.add({module + ".word" + std::to_string(t), "embedding", hidden_, hidden_,
                                 first(t, vocabulary_ * hidden_)}));
    return line;
  }

  // A layer over the words, in this or the other direction; `before`: the state that it begins with.
  enum class Way : std::uint8_t { kForward, kBackward };
  Line layer(const std::string& module, const Line& below, Way way, std::optional<std::size_t> before) {
    Line line(below.size());
    for (std::size_t i = 0; i < below.size(); ++i) {
      const std::size_t t = way == Way::kForward ? i : below.size() - 1 - i;
      std::vector<std::size_t> reads{below[t]};
      if (before) reads.push_back(*before);
      before = line[t] = graph_.add({module + ".step" + std::to_string(t), "lstm", 16 * hidden_ * hidden_,
                                     hidden_, first(i, 8 * hidden_ * hidden_)},
                                    std::move(reads));
    }
    return line;
  }

  Line encoder() {
    Line line = words("encoder", shape_.source);
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      const std::string module = "encoder.layer" + std::to_string(l);
      const Line below = line;
      line = layer(module, below, Way::kForward, std::nullopt);
      last_states_.push_back(line.back());
      if (l > 0 || !shape_.both_directions) continue;
      const Line back = layer(module + ".back", below, Way::kBackward, std::nullopt);
      for (std::size_t t = 0; t < line.size(); ++t)
        line[t] =
            graph_.add({module + ".sum" + std::to_string(t), "add", hidden_, hidden_}, {line[t], back[t]});
    }
    return line;
  }

  void decoder(const Line& memory) {
    Line line = words("decoder", shape_.target);
    for (std::size_t l = 0; l < last_states_.size(); ++l)
      line = layer("decoder.layer" + std::to_string(l), line, Way::kForward, last_states_[l]);
    std::vector<std::size_t> classified;
    for (std::size_t t = 0; t < line.size(); ++t) {
      std::vector<std::size_t> reads = memory;
      reads.push_back(line[t]);
      const double over = 4 * static_cast<double>(memory.size()) * hidden_ + 4 * hidden_ * hidden_;
      const std::size_t context = graph_.add(
          {"attention.step" + std::to_string(t), "attention", over, hidden_, first(t, 2 * hidden_ * hidden_)},
          std::move(reads));
      classified.push_back(
          graph_.add({"classes.step" + std::to_string(t), "classes", 2 * hidden_ * vocabulary_, vocabulary_,
                      first(t, hidden_ * vocabulary_)},
                     {context}));
    }
    graph_.add({"loss", "loss", static_cast<double>(line.size()) * vocabulary_, 1}, classified);
  }

  TranslationShape shape_;
  TaskDag graph_;
  double hidden_, vocabulary_;
  std::vector<std::size_t> last_states_;
};

}  // namespace

TaskDag translation(const Translation& network) {
  return TranslationWriter(network).write();
}

}  // namespace espalier
