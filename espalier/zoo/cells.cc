#include "espalier/zoo/cells.h"

#include <algorithm>
#include <array>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/zoo/model_builder.h"

namespace espalier {
namespace {

using Window = ModelBuilder::Window;

TensorId activated(ModelBuilder& out, const std::string& name, TensorId x) {
  return out.map(name, "aten.relu.default", {x});
}

// Both in braces: what makes them is then written down in that order, whatever the compiler.
TensorId sum_of(ModelBuilder& out, const std::string& name, std::vector<TensorId> both) {
  return out.map(name, "aten.add.Tensor", std::move(both));
}

TensorId average(ModelBuilder& out, const std::string& name, TensorId x, std::int64_t stride) {
  return out.pool(name, "aten.avg_pool2d.default", x, ModelBuilder::square(3, stride));
}

TensorId largest(ModelBuilder& out, const std::string& name, TensorId x, std::int64_t kernel,
                 std::int64_t stride) {
  Window window = ModelBuilder::square(kernel, stride);
  if (kernel % 2 == 0) window.padding = {0, 0};
  return out.pool(name, "aten.max_pool2d.default", x, window);
}

TensorId normed_relu_projection(ModelBuilder& out, const std::string& name, TensorId x,
                                std::int64_t channels) {
  return out.conv_norm(name, activated(out, name + ".relu", x), channels, {});
}

// Half the height and width without losing every second place: of two poolings one is moved by a place.
TensorId factorized_reduction(ModelBuilder& out, const std::string& name, TensorId x, std::int64_t channels) {
  const auto scope = out.inside(name);
  const TensorId active = activated(out, "relu", x);
  const Window every_second{.stride = 2};
  const auto half = [&](const std::string& which, TensorId from) {
    const TensorId picked = out.pool("pool" + which, "aten.avg_pool2d.default", from, every_second);
    return out.convolution("conv" + which, picked, channels / 2, {});
  };
  const TensorId moved = out.add("moved", "aten.constant_pad_nd.default", {active}, out.sizes(active));
  const TensorId one = half("1", active);
  return out.batch_norm("bn", out.concat("cat", {one, half("2", moved)}, 1));
}

// ---- NASNet

class NasNetWriter {
 public:
  explicit NasNetWriter(const NasNet& model) : model_(model), out_("nasnet", kAnyBatch) {}

  Graph write() {
    const std::int64_t f = model_.filters;
    const TensorId image = out_.input("image", {SizeExpr::batch(), 3, model_.image, model_.image});
    const TensorId label = out_.input("label", {SizeExpr::batch()}, DType::kI64);
    last_ = out_.conv_norm("stem", image, model_.stem, {.kernel = {3, 3}, .stride = 2});
    reduce("stem1", std::max<std::int64_t>(1, f / 4));
    reduce("stem2", std::max<std::int64_t>(1, f / 2));
    for (std::int64_t group = 0; group < 3; ++group) {
      const std::int64_t filters = f << group;
      if (group > 0) {
        const std::optional<TensorId> beyond = before_;
        reduce("reduce" + std::to_string(group), filters);
        if (model_.reach == NasNet::Reach::kBeyond) before_ = beyond;
      }
      for (std::int64_t i = 0; i < model_.cells; ++i) {
        out_.enter("cells." + std::to_string(group * model_.cells + i));
        normal(filters);
      }
    }
    out_.enter("head");
    const TensorId pooled = out_.global_pool("pool", activated(out_, "relu", last_));
    return out_.finish(out_.cross_entropy("loss", out_.linear("classes", pooled, model_.classes), label));
  }

 private:
  void reduce(const std::string& name, std::int64_t filters) {
    out_.enter(name);
    reduction(filters);
  }

  // relu, depthwise and pointwise convolution, norm; and again with stride 1.
  TensorId separable(const std::string& name, TensorId x, std::int64_t filters, std::int64_t kernel,
                     std::int64_t stride = 1) {
    const auto scope = out_.inside(name);
    for (const std::string which : {"1", "2"}) {
      x = activated(out_, "relu" + which, x);
      const Window window = ModelBuilder::square(kernel, which == "1" ? stride : 1);
      const std::int64_t channels = out_.size(x, 1);
      x = out_.convolution("depth" + which, x, channels, window, ModelBuilder::Bias::kWithout, channels);
      x = out_.batch_norm("bn" + which, out_.convolution("point" + which, x, filters, {}));
    }
    return x;
  }

  // The cell before the last, with the last one's height and the cell's channels.
  TensorId adjusted(std::int64_t filters) {
    if (!before_) return last_;
    if (out_.size(*before_, 2) != out_.size(last_, 2))
      return factorized_reduction(out_, "adjust", *before_, filters);
    if (out_.size(*before_, 1) != filters) return normed_relu_projection(out_, "adjust", *before_, filters);
    return *before_;
  }

  void normal(std::int64_t filters) {
    const TensorId p = adjusted(filters);
    const TensorId h = normed_relu_projection(out_, "begin", last_, filters);
    const TensorId one =
        sum_of(out_, "sum1", {separable("left1", h, filters, 5), separable("right1", p, filters, 3)});
    const TensorId two =
        sum_of(out_, "sum2", {separable("left2", p, filters, 5), separable("right2", p, filters, 3)});
    const TensorId three = sum_of(out_, "sum3", {average(out_, "left3", h, 1), p});
    const TensorId four = sum_of(out_, "sum4", {average(out_, "left4", p, 1), average(out_, "right4", p, 1)});
    const TensorId five = sum_of(out_, "sum5", {separable("left5", h, filters, 3), h});
    before_ = std::exchange(last_, out_.concat("cat", {p, one, two, three, four, five}, 1));
  }

  void reduction(std::int64_t filters) {
    const TensorId p = adjusted(filters);
    const TensorId h = normed_relu_projection(out_, "begin", last_, filters);
    const TensorId one =
        sum_of(out_, "sum1", {separable("left1", h, filters, 5, 2), separable("right1", p, filters, 7, 2)});
    const TensorId two =
        sum_of(out_, "sum2", {largest(out_, "left2", h, 3, 2), separable("right2", p, filters, 7, 2)});
    const TensorId three =
        sum_of(out_, "sum3", {average(out_, "left3", h, 2), separable("right3", p, filters, 5, 2)});
    const TensorId four = sum_of(out_, "sum4", {two, average(out_, "left4", one, 1)});
    const TensorId five =
        sum_of(out_, "sum5", {separable("left5", one, filters, 3), largest(out_, "right5", h, 3, 2)});
    before_ = std::exchange(last_, out_.concat("cat", {two, three, four, five}, 1));
  }

  const NasNet& model_;
  ModelBuilder out_;
  TensorId last_;                   // what the last cell gave
  std::optional<TensorId> before_;  // and the one before it
};

// ---- AmoebaNet

enum class Move : std::uint8_t { kNone, kAverage3, kMax2, kMax3, kConv1, kConv3, kConv7 };

// States 0 and 1 are the two cells before; each pair of entries adds state 2, 3, … from two earlier ones.
struct CellPlan {
  struct Entry {
    std::size_t from;
    Move move;
  };
  std::array<Entry, 10> entries;
  std::vector<std::size_t> given;  // states side by side
};

const CellPlan& amoeba_normal() {
  static const CellPlan kPlan{{{{1, Move::kConv1},
                                {1, Move::kMax3},
                                {1, Move::kNone},
                                {0, Move::kConv7},
                                {0, Move::kConv1},
                                {0, Move::kConv7},
                                {2, Move::kMax3},
                                {2, Move::kNone},
                                {1, Move::kAverage3},
                                {5, Move::kConv1}}},
                              {0, 3, 4, 6}};
  return kPlan;
}

const CellPlan& amoeba_reduction() {
  static const CellPlan kPlan{{{{0, Move::kMax2},
                                {0, Move::kMax3},
                                {2, Move::kNone},
                                {1, Move::kConv3},
                                {2, Move::kConv7},
                                {2, Move::kMax3},
                                {3, Move::kNone},
                                {1, Move::kMax2},
                                {2, Move::kAverage3},
                                {3, Move::kConv1}}},
                              {4, 5, 6}};
  return kPlan;
}

class AmoebaNetWriter {
 public:
  explicit AmoebaNetWriter(const AmoebaNet& model) : model_(model), out_("amoebanet", kAnyBatch) {}

  Graph write() {
    const TensorId image = out_.input("image", {SizeExpr::batch(), 3, model_.image, model_.image});
    const TensorId label = out_.input("label", {SizeExpr::batch()}, DType::kI64);
    std::int64_t channels = model_.filters / 4;
    last_ = before_ = out_.conv_norm("stem", image, channels, ModelBuilder::square(3, 2));
    for (const std::string name : {"stem1", "stem2"}) {
      out_.enter(name);
      cell(amoeba_reduction(), channels *= 2, 2);
    }
    for (std::int64_t group = 0; group < 3; ++group) {
      if (group > 0) {
        out_.enter("reduce" + std::to_string(group));
        cell(amoeba_reduction(), channels *= 2, 2);
      }
      for (std::int64_t i = 0; i < model_.layers / 3; ++i) {
        out_.enter("cells." + std::to_string(group * (model_.layers / 3) + i));
        cell(amoeba_normal(), channels, 1);
      }
    }
    out_.enter("head");
    const TensorId pooled = out_.global_pool("pool", last_);
    return out_.finish(out_.cross_entropy("loss", out_.linear("classes", pooled, model_.classes), label));
  }

 private:
  // relu, convolution to `channels`, norm for each of the windows.
  TensorId row(TensorId x, std::int64_t channels, const std::vector<Window>& windows) {
    const std::int64_t narrow = windows.size() > 1 ? channels / 4 : channels;
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const std::string number = std::to_string(i);
      const TensorId active = activated(out_, "relu" + number, x);
      x = out_.conv_norm(number, active, i + 1 == windows.size() ? channels : narrow, windows[i]);
    }
    return x;
  }

  TensorId moved(const std::string& name, Move move, TensorId x, std::int64_t channels, std::int64_t stride) {
    const auto scope = out_.inside(name);
    const Window by_stride{.stride = stride};
    switch (move) {
      case Move::kNone:
        return stride == 1 ? x : factorized_reduction(out_, "reduction", x, channels);
      case Move::kAverage3:
        return average(out_, "average", x, stride);
      case Move::kMax2:
        return largest(out_, "max", x, 2, stride);
      case Move::kMax3:
        return largest(out_, "max", x, 3, stride);
      case Move::kConv1:
        return row(x, channels, {by_stride});
      case Move::kConv3:
        return row(x, channels, {{}, ModelBuilder::square(3, stride), {}});
      case Move::kConv7:
        return row(x, channels,
                   {{},
                    {.kernel = {1, 7}, .stride = stride, .padding = {0, 3}},
                    {.kernel = {7, 1}, .padding = {3, 0}},
                    {}});
    }
    return x;
  }

  void cell(const CellPlan& plan, std::int64_t channels, std::int64_t stride) {
    const bool halved = out_.size(before_, 2) != out_.size(last_, 2);
    const TensorId before = halved ? factorized_reduction(out_, "before", before_, channels)
                                   : normed_relu_projection(out_, "before", before_, channels);
    std::vector<TensorId> states{normed_relu_projection(out_, "last", last_, channels), before};
    for (std::size_t i = 0; i < plan.entries.size(); i += 2) {
      const std::string number = std::to_string(states.size());
      const auto side = [&](const std::string& name, const CellPlan::Entry& entry) {
        return moved(name + number, entry.move, states[entry.from], channels, entry.from < 2 ? stride : 1);
      };
      const TensorId left = side("left", plan.entries[i]);
      states.push_back(sum_of(out_, "sum" + number, {left, side("right", plan.entries[i + 1])}));
    }
    std::vector<TensorId> given;
    for (const std::size_t state : plan.given) given.push_back(states[state]);
    before_ = std::exchange(last_, out_.concat("cat", given, 1));
  }

  const AmoebaNet& model_;
  ModelBuilder out_;
  TensorId last_, before_;
};

}  // namespace

Graph build(const NasNet& model) {
  expect_sizes("nasnet", {model.cells, model.filters, model.stem, model.image, model.classes});
  if (model.filters % 4 != 0)
    throw InputError("nasnet: filters are a multiple of 4, as the stem takes a quarter");
  return NasNetWriter(model).write();
}

Graph build(const AmoebaNet& model) {
  expect_sizes("amoebanet", {model.layers, model.filters, model.image, model.classes});
  if (model.layers % 3 != 0)
    throw InputError("amoebanet: layers are a multiple of 3, as there are three groups");
  if (model.image % 32 != 0)
    throw InputError("amoebanet: the image is a multiple of 32 pixels, halved five times");
  if (model.filters % 8 != 0) {
    throw InputError(
        "amoebanet: filters are a multiple of 8; the first cell has a half, and a quarter of that inside");
  }
  return AmoebaNetWriter(model).write();
}

}  // namespace espalier
