// What our rules derive beside what ONNX's own tests of single operators declare: bench_onnx FILE… prints how
// many outputs agree, are not derived, or differ, and names those that differ. Exit 1 if any differs.

#include <iostream>
#include <map>
#include <string>

#include "espalier/base/check.h"
#include "espalier/frontend/onnx_sizes.h"
#include "espalier/frontend/zip.h"

namespace espalier {
namespace {

// The value that a declaration describes; none if a size is open, or the type is not read.
std::optional<OnnxValue> declared(const OnnxType& type) {
  const auto dtype = onnx_dtype(type.element);
  if (!type.is_tensor || !type.dims || !dtype) return std::nullopt;
  OnnxValue value{.dtype = *dtype};
  for (const OnnxDim& dim : *type.dims) {
    if (!dim.value) return std::nullopt;
    value.sizes.emplace_back(*dim.value);
  }
  return value;
}

std::string text(const OnnxValue& value) {
  std::string result(to_text(value.dtype));
  for (const SizeExpr& size : value.sizes) result += " " + size.text();
  return result;
}

struct Counts {
  std::size_t agree = 0, not_derived = 0, differ = 0;
  std::map<std::string, std::size_t> types;  // of operators that agree somewhere
};

void compare(const std::string& path, Counts& counts) {
  const MappedFile bytes(path);
  const OnnxFile file = read_onnx_file(bytes.bytes(), path);
  std::map<std::string, OnnxValue> values;
  for (const OnnxTensor& tensor : file.initializers)
    if (const auto value = onnx_constant(tensor)) values.emplace(tensor.name, *value);
  for (const auto& [name, type] : file.inputs)
    if (const auto value = declared(type)) values.emplace(name, *value);
  for (const OnnxNode& node : file.nodes) {
    std::vector<const OnnxValue*> inputs;
    bool known = true;
    for (const std::string& input : node.inputs) {
      const auto found = values.find(input);
      known = known && (input.empty() || found != values.end());
      inputs.push_back(found == values.end() ? nullptr : &found->second);
    }
    const auto derived = known ? onnx_outputs(node, inputs, file.opset) : std::nullopt;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const auto said = file.types.find(node.outputs[i]);
      const auto value = said == file.types.end() ? std::nullopt : declared(said->second);
      if (derived) values.emplace(node.outputs[i], (*derived)[i]);
      if (!derived && value) values.emplace(node.outputs[i], *value);
      if (!value) continue;
      if (!derived) {
        ++counts.not_derived;
      } else if ((*derived)[i].sizes == value->sizes && (*derived)[i].dtype == value->dtype) {
        ++counts.agree;
        ++counts.types[node.type];
      } else {
        ++counts.differ;
        std::cout << path << ": " << node.type << " gives " << text((*derived)[i]) << ", declared "
                  << text(*value) << '\n';
      }
    }
  }
}

int run(int count, char** arguments) {
  Counts counts;
  std::size_t refused = 0;
  for (int i = 1; i < count; ++i) {
    try {
      compare(arguments[i], counts);
    } catch (const InputError& error) {
      ++refused;
      std::cout << error.what() << '\n';
    }
  }
  std::cout << counts.agree << " outputs of " << counts.types.size() << " operators agree, "
            << counts.not_derived << " are not derived, " << counts.differ << " differ; " << refused << " of "
            << count - 1 << " files are not read\n";
  return counts.differ > 0 ? 1 : 0;
}

}  // namespace
}  // namespace espalier

int main(int count, char** arguments) {
  return espalier::run(count, arguments);
}
