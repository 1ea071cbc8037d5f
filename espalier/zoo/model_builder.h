#pragma once

// Writes down a forward graph operator by operator, as an export of PyTorch would hold it: sizes, views,
// parameters, what requires a gradient. No weights, nothing to run. Above the operators stand the layers that
// models repeat, so that a model reads like the figure of its paper.

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

inline constexpr BatchRange kAnyBatch{BatchSize(1), BatchSize(1 << 20)};

class ModelBuilder {
 public:
  using Sizes = std::vector<SizeExpr>;

  ModelBuilder(std::string name, BatchRange batch);

  TensorId input(const std::string& name, Sizes sizes, DType dtype = DType::kF32);
  TensorId parameter(const std::string& name, std::vector<std::int64_t> sizes);
  TensorId buffer(const std::string& name, std::vector<std::int64_t> sizes, DType dtype = DType::kF32);
  // From now on a parameter "module.x" is the parameter "of.x" that exists: modules unrolled over time share
  // what they learn.
  void share_parameters(std::string module, std::string of);

  // ---- Modules

  // Operators after this one stand in that module: "encoder.layers.0". Their names begin with it.
  void enter(std::string module_path) { module_path_ = std::move(module_path); }
  // The same for a module of the present one, until the scope ends.
  class Scope {
   public:
    Scope(ModelBuilder& builder, std::string module_path)
        : builder_(builder), before_(std::exchange(builder.module_path_, std::move(module_path))) {}
    ~Scope() { builder_.module_path_ = std::move(before_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ModelBuilder& builder_;
    std::string before_;
  };
  [[nodiscard]] Scope inside(const std::string& module) { return {*this, full_name(module)}; }
  [[nodiscard]] Scope inside(const std::string& module, std::int64_t number) {
    return inside(module + "." + std::to_string(number));
  }
  // "encoder.layers.0.name": the name as the present module has it.
  std::string full_name(const std::string& name) const {
    return module_path_.empty() ? name : module_path_ + "." + name;
  }

  // ---- Operators, "module.name", which no other is called

  enum class Memory : std::uint8_t { kOwn, kView };  // of the outputs: their own, or the first input's
  // The same values, through which no gradient flows.
  TensorId detach(const std::string& name, TensorId x);
  // With one output of its first input's type.
  TensorId add(const std::string& name, std::string_view target, std::vector<TensorId> inputs, Sizes sizes,
               Memory memory = Memory::kOwn);
  std::vector<TensorId> add_several(const std::string& name, std::string_view target,
                                    std::vector<TensorId> inputs, std::size_t outputs, Sizes sizes,
                                    Memory memory = Memory::kOwn);
  // The same of an operator whose result for a sample depends on the others of the batch.
  TensorId mix(const std::string& name, std::string_view target, std::vector<TensorId> inputs, Sizes sizes);
  TensorId view(const std::string& name, std::string_view target, TensorId x, Sizes sizes) {
    return add(name, target, {x}, std::move(sizes), Memory::kView);
  }
  // Element by element: with the sizes of its first input.
  TensorId map(const std::string& name, std::string_view target, std::vector<TensorId> inputs) {
    Sizes all = sizes(inputs[0]);
    return add(name, target, std::move(inputs), std::move(all));
  }
  TensorId concat(const std::string& name, std::vector<TensorId> parts, std::size_t dimension);
  TensorId look_up(const std::string& name, TensorId table, TensorId indices);  // an embedding
  // Without inputs: each stage makes its own (duplicable).
  TensorId generate(const std::string& name, std::string_view target, Sizes sizes, DType dtype = DType::kF32);
  // Of generated tensors and buffers that nobody writes: duplicable as they are.
  TensorId derive(const std::string& name, std::string_view target, std::vector<TensorId> inputs, Sizes sizes,
                  Memory memory = Memory::kOwn);
  TensorId random(const std::string& name, std::string_view target, TensorId input);  // such as dropout
  // The `count` largest along the last dimension: values, and their places (i64).
  std::pair<TensorId, TensorId> top(const std::string& name, TensorId x, std::int64_t count);

  const Sizes& sizes(TensorId id) const { return parts_.tensors[id.index()].sizes; }
  // The size of a dimension that does not depend on the batch; -1 is the last.
  std::int64_t size(TensorId id, std::ptrdiff_t dimension) const;

  // ---- Layers. Parameters of "module.name" are "module.name.weight" and "module.name.bias".

  enum class Bias : std::uint8_t { kWithout, kWith };
  TensorId linear(const std::string& name, TensorId x, std::int64_t to, Bias bias = Bias::kWith);
  TensorId layer_norm(const std::string& name, TensorId x);
  TensorId rms_norm(const std::string& name, TensorId x);
  TensorId embedding(const std::string& name, TensorId indices, std::int64_t rows, std::int64_t width);
  // A row for each of the first `positions`, as a sample's: positions × width.
  TensorId position_embedding(const std::string& name, std::int64_t positions, std::int64_t rows,
                              std::int64_t width);

  // A module `name` of two linear layers, up and down, and an activation between.
  TensorId feed_forward(const std::string& name, TensorId x, std::int64_t inner, std::string_view activation,
                        Bias bias = Bias::kWith);

  struct Rotary {  // cosines and sines, positions × width of a head, that turn queries and keys
    TensorId cosine, sine;
  };
  struct Attention {
    std::int64_t heads = 1;
    std::int64_t key_value_heads = 0;  // 0: as many
    std::int64_t head_width = 0;       // 0: the width of x, divided by the heads
    Bias bias = Bias::kWith;
    Bias key_bias = Bias::kWith;
    std::optional<TensorId> mask = {};  // added to the scores
    std::optional<Rotary> rotary = {};
  };
  // A module `name`: projections q of `x`, k and v of `memory`; attention without stored scores; projection
  // to x's width.
  TensorId attention(const std::string& name, TensorId x, TensorId memory, const Attention& sizes);
  // In the present module, before each half of the layer a norm: x + attention(norm(x)), then the same of the
  // feed-forward part.
  TensorId pre_norm_layer(TensorId x, std::int64_t feed_forward, std::string_view activation,
                          const Attention& sizes);
  // Their parts: samples × positions × (heads · width) as samples × heads × positions × width; and the
  // attention of such operands, with the heads side by side again.
  TensorId split_heads(const std::string& name, TensorId x, std::int64_t heads);
  TensorId attend(const std::string& name, std::vector<TensorId> operands);
  Rotary rotary(const std::string& name, std::int64_t positions, std::int64_t head_width);

  using Pair = std::array<std::int64_t, 2>;  // height, width; of a signal in time only the first counts
  struct Window {
    Pair kernel{1, 1};
    std::int64_t stride = 1;
    Pair padding{0, 0};
    std::int64_t dilation = 1;
  };
  static Window square(std::int64_t kernel, std::int64_t stride = 1);  // padded by half of the kernel
  // x is samples × channels × length, or × height × width. Throws InputError where the window does not fit.
  TensorId convolution(const std::string& name, TensorId x, std::int64_t channels, const Window& window,
                       Bias bias = Bias::kWithout, std::int64_t groups = 1);
  TensorId pool(const std::string& name, std::string_view target, TensorId x, const Window& window);
  // In training: it writes its running statistics and counts its calls, as PyTorch's does.
  TensorId batch_norm(const std::string& name, TensorId x);
  // Modules name.conv and name.bn, then relu.
  TensorId conv_norm(const std::string& name, TensorId x, std::int64_t channels, const Window& window,
                     std::int64_t groups = 1);
  TensorId conv_norm_relu(const std::string& name, TensorId x, std::int64_t channels, const Window& window);

  // Samples × channels: the mean over all places, then the view without them.
  TensorId global_pool(const std::string& name, TensorId x);

  // The mean cross entropy of logits … × classes and labels …, of whatever rank.
  TensorId cross_entropy(const std::string& name, TensorId logits, TensorId labels);

  // With one output, the loss.
  Graph finish(TensorId loss);

 private:
  std::vector<TensorId> append(Operator op, const std::vector<DType>& outputs, const Sizes& sizes,
                               Memory memory);
  TensorId source(Tensor tensor);
  TensorId stored(const std::string& name, std::vector<std::int64_t> sizes, DType dtype, TensorRole role);
  TensorId rotate(const std::string& name, TensorId x, const Rotary& by);
  DType type_of(TensorId id) const { return parts_.tensors[id.index()].dtype; }

  GraphParts parts_;
  std::string module_path_;
  std::unordered_map<std::string, TensorId> parameters_;             // by name
  std::vector<std::pair<std::string, std::string>> shared_modules_;  // "module." and "of."
  std::unordered_set<std::string> names_;                            // of operators
  std::size_t storages_ = 0;
};

// Throw InputError "gpt: every size is at least 1", "gpt: 7 heads do not divide the hidden size 64".
void expect_sizes(const std::string& model, std::initializer_list<std::int64_t> sizes);
void expect_heads(const std::string& model, std::int64_t heads, std::int64_t hidden);

}  // namespace espalier
