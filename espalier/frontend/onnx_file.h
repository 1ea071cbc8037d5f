#pragma once

// What stands in an ONNX file, as far as a planner needs it: nodes, types, sizes and small constants. Weights
// are skipped where they lie, so a file of many gigabytes is read in the time of its graph. Internal to the
// frontend.
//
// ONNX files are protocol buffers; the numbers of their fields are those of onnx.proto (ONNX 1.23, IR version
// 14). Unknown fields are skipped, as the format asks for.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/graph/graph.h"

namespace espalier {

// Integers of up to so many elements are read: shapes, axes, split sizes. So are as many floating-point
// numbers.
inline constexpr std::int64_t kMostOnnxConstants = 1024;

// A size in a type: a number, a name that stands for one, or (neither) open.
struct OnnxDim {
  std::optional<std::int64_t> value = {};
  std::string symbol = {};
};

struct OnnxType {
  bool is_tensor = false;                         // no sequence, map, optional or sparse tensor
  std::int64_t element = 0;                       // TensorProto.DataType
  std::optional<std::vector<OnnxDim>> dims = {};  // none: not even the rank is known
};

struct OnnxTensor {
  std::string name = {};
  std::int64_t element = 0;
  std::vector<std::int64_t> dims = {};
  std::optional<std::vector<std::int64_t>> integers = {};  // where they were read
  std::optional<std::vector<double>> reals = {};
};

struct OnnxGraph;

struct OnnxAttribute {
  std::string name = {};
  std::optional<std::int64_t> integer = {};
  std::optional<double> real = {};
  std::string text = {};
  std::vector<std::int64_t> integers = {};
  std::vector<double> reals = {};
  std::optional<OnnxTensor> tensor = {};
  std::shared_ptr<const OnnxGraph> graph = {};  // a branch of If, the body of a loop
};

struct OnnxNode {
  std::string name = {};
  std::string type = {};                  // "Conv"
  std::string domain = {};                // empty: ONNX's own
  std::vector<std::string> inputs = {};   // an empty name: left out
  std::vector<std::string> outputs = {};  // likewise
  std::vector<OnnxAttribute> attributes = {};
  std::string module_path = {};  // from the exporter's notes, else from the name
  std::string source = {};       // "model.py:12", from the exporter's notes

  const OnnxAttribute* find(std::string_view attribute) const;
  std::int64_t integer(std::string_view attribute, std::int64_t otherwise) const;
  std::string text(std::string_view attribute) const;  // empty if it is missing
  std::optional<std::vector<std::int64_t>> integers(std::string_view attribute) const;
};

struct OnnxGraph {
  std::vector<OnnxNode> nodes = {};
  std::vector<OnnxTensor> initializers = {};
  std::vector<std::pair<std::string, OnnxType>> inputs = {};  // older files name initializers here, too
  std::vector<std::string> outputs = {};
  // Of inputs, outputs and whatever else the file describes.
  std::unordered_map<std::string, OnnxType> types = {};
};

struct OnnxFile : OnnxGraph {
  std::int64_t opset = 0;  // of ONNX's own operators; 0: not said
  bool has_functions = false;
};

// Whether these may be the bytes of an ONNX file: they begin with its version and another field of a model.
bool is_onnx(std::string_view bytes);

// Throws InputError "<name>: …" for damage, naming the byte. Takes memory in proportion to the graph.
OnnxFile read_onnx_file(std::string_view bytes, const std::string& name);

// Of TensorProto.DataType; none for strings and unknown numbers. Four-bit elements count as bytes.
std::optional<DType> onnx_dtype(std::int64_t element);

}  // namespace espalier
